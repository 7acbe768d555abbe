"""The stage that trains a model of the embedded pair: the large from the corpus, the small one from the large too."""

from __future__ import annotations

from pathlib import Path

from serving.progress import Progress
from training.embedded_pair.initialisation import COPYING_INIT, InitConfig
from training.embedded_pair.llama import LlamaSizes
from training.embedded_pair.lm_module import LMRecipe
from training.fitting.trainer import CPU_TRAINER, Trainer


def train(
    out: Path,
    *,
    work: Path,
    progress: Progress,
    corpus: Path,
    teacher: Path | None = None,
    architecture: LlamaSizes,
    recipe: LMRecipe,
    init: InitConfig = COPYING_INIT,
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Train on the corpus, and on the distributions of `teacher`, an earlier one's checkpoint, if there is one.

    `out` becomes a Hugging Face checkpoint with training.json beside it. Killed and called again with the same `work`,
    it continues from the last saved step and ends with the same weights (same machine, thread count and precision).
    """
    from training.embedded_pair.train_loop import train_model  # lightning and torch: seconds that a plan does not have

    train_model(out, work, progress, corpus, architecture, recipe, init, seed, trainer, teacher)
