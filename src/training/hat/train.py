"""One training on a trace of hidden states: the best weights, and how they came about."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from serving.progress import Progress
from training.fitting.callbacks import CHECKPOINT, Bookmark, Diary
from training.fitting.trainer import Trainer
from training.hat.batches import Batches, gather
from training.hat.best import Best
from training.hat.recipe import Recipe
from training.hat.study import Study
from training.hat.trace import Split, Trace

SAVE_EVERY_STEPS = 100


def take(
    study: Study,
    trace: Trace,
    split: Split,
    recipe: Recipe,
    seed: int,
    trainer: Trainer,
    work: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Trains `study`, whose weights are then the best ones; says how long and how well.

    Held-out loss and agreement are those of answers: what is served are answers. The same seed gives the same weights
    on one machine, with an interruption or without.
    """
    loader = Batches(trace, split.train, recipe.batch, recipe.steps, recipe.prompt_weight, seed)
    diary = Diary(recipe.steps, progress)
    best = Best(gather(trace, split.validation, 0.0), recipe.check_every, recipe.steps, recipe.patience)
    with trainer.using_threads() as threads:
        callbacks = [diary, best, Bookmark(work, SAVE_EVERY_STEPS)]
        trainer.fit(study, loader, callbacks, saved=work / CHECKPOINT)
        best.restore(study)
        study.eval().to("cpu")
        agreement = study.agreement(gather(trace, split.test, 0.0))
    return {
        "recipe": asdict(recipe),
        "seed": seed,
        "texts": {name: len(part) for name, part in asdict(split).items()},
        "parameters": sum(weight.numel() for weight in study.trained.parameters()),
        "steps": len(diary.losses),
        "best_step": best.step,
        "validation_losses": [round(loss, 5) for loss in best.losses],
        "test_agreement": agreement,
        "training_s": sum(diary.seconds),
        "quiet_step_s": diary.quiet_step_s(),
        "threads": threads,
    }
