"""The stage that trains a model of the embedded pair: the large from the corpus, the small one from the large too."""

from __future__ import annotations

from pathlib import Path

from serving.progress import Progress
from training.embedded_pair.initialisation import COPYING, Start
from training.embedded_pair.llama import Architecture
from training.embedded_pair.lm_module import Recipe
from training.fitting.trainer import ALL_CORES, Trainer


def train(
    out: Path,
    *,
    work: Path,
    progress: Progress,
    corpus: Path,
    teacher: Path | None = None,
    architecture: Architecture,
    recipe: Recipe,
    start: Start = COPYING,
    seed: int = 0,
    trainer: Trainer = ALL_CORES,
) -> None:
    """Train on the corpus, and on the distributions of `teacher`, an earlier one's checkpoint, if there is one.

    `out` becomes a Hugging Face checkpoint with training.json beside it. Killed and called again with the same `work`,
    it continues from the last saved step and ends with the same weights (same machine, thread count and precision).
    """
    from training.embedded_pair.train_loop import take  # lightning and torch: seconds that a plan does not have

    take(out, work, progress, corpus, architecture, recipe, start, seed, trainer, teacher)
