"""The stages that train the embedded pair: a large model from the corpus, a small one from the large one."""

from __future__ import annotations

from pathlib import Path

from serving.progress import Progress
from training.recipe import Recipe
from training.sizes import Architecture
from training.start import COPYING, Start
from training.trainer import ALL_CORES, Trainer


def train_large(
    out: Path,
    *,
    work: Path,
    progress: Progress,
    corpus: Path,
    architecture: Architecture,
    recipe: Recipe,
    start: Start = COPYING,
    seed: int = 0,
    trainer: Trainer = ALL_CORES,
) -> None:
    """Train the cloud's model on the corpus; `out` becomes a Hugging Face checkpoint with training.json beside it.

    Killed and called again with the same `work`, it continues from the last saved step and ends with the same weights
    (same machine, thread count and precision).
    """
    from training.course import train

    train(out, work, progress, corpus, architecture, recipe, start, seed, trainer, teacher=None)


def train_small(
    out: Path,
    *,
    work: Path,
    progress: Progress,
    corpus: Path,
    teacher: Path,
    architecture: Architecture,
    recipe: Recipe,
    start: Start = COPYING,
    seed: int = 0,
    trainer: Trainer = ALL_CORES,
) -> None:
    """Train the device's model on the corpus and on the distributions of `teacher`, a checkpoint of `train_large`.

    Writes and continues as `train_large` does.
    """
    from training.course import train

    train(out, work, progress, corpus, architecture, recipe, start, seed, trainer, teacher)
