"""One training on a trace of hidden states: the best weights, and how they came about.

Which step's weights are kept: those with the lowest loss on texts that nothing learns from.
"""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch import Trainer as LightningTrainer

from serving.progress import Progress
from training.fitting.callbacks import CHECKPOINT, Bookmark, Diary
from training.fitting.trainer import Trainer
from training.hat.batches import Batch, Batches, Recipe, gather
from training.hat.distillation import Study
from training.hat.trace import Split, Trace


class Best(Callback):
    """Looks at the held-out loss every so many steps and at the last one, keeps a copy of the best weights, and stops
    training after `patience` looks without a lower loss. Both survive a restart.
    """

    def __init__(self, held_out: Batch, every: int, steps: int, patience: int) -> None:
        self.losses: list[float] = []
        self._held_out, self._every, self._steps, self._patience = held_out, every, steps, patience
        self._weights: dict[str, Any] = {}

    @property
    def look(self) -> int:
        """Which one was best, from 0."""
        return self.losses.index(min(self.losses))

    @property
    def step(self) -> int:
        """How many steps had been taken then."""
        return min(self._steps, (self.look + 1) * self._every)

    def on_train_batch_end(self, trainer: LightningTrainer, module: Study, *_: Any) -> None:  # type: ignore[override]
        step = trainer.global_step
        if not self._over and (step % self._every == 0 or step == self._steps):
            self._compare(module)
        if self._over:
            trainer.should_stop = True

    @property
    def _over(self) -> bool:
        return bool(self.losses) and len(self.losses) - 1 - self.look >= self._patience

    @torch.no_grad()
    def _compare(self, module: Study) -> None:
        self.losses.append(float(module.loss(self._held_out.to(module.device))))
        if self.look == len(self.losses) - 1:
            self._weights = copy.deepcopy(module.trained.state_dict())

    def restore(self, module: Study) -> None:
        module.trained.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "weights": self._weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.losses, self._weights = list(state_dict["losses"]), state_dict["weights"]


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
