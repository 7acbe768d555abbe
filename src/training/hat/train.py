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
from training.fitting.callbacks import CHECKPOINT_FILE, Checkpointer, StepHistory
from training.fitting.trainer import Trainer
from training.hat.batches import HATRecipe, HiddenStateBatch, HiddenStateLoader, collate
from training.hat.distillation import FrozenTargetModule
from training.hat.trace import HiddenStateTrace, TextSplit


class EarlyStoppingByStep(Callback):
    """Looks at the held-out loss every so many steps and at the last one, keeps a copy of the best weights, and stops
    training after `patience` looks without a lower loss. Both survive a restart.
    """

    def __init__(self, held_out: HiddenStateBatch, eval_steps: int, steps: int, patience: int) -> None:
        self.losses: list[float] = []
        self._held_out, self._eval_steps, self._steps, self._patience = held_out, eval_steps, steps, patience
        self._best_weights: dict[str, Any] = {}

    @property
    def best_check(self) -> int:
        """Which one was best, from 0."""
        return self.losses.index(min(self.losses))

    @property
    def best_step(self) -> int:
        """How many steps had been taken then."""
        return min(self._steps, (self.best_check + 1) * self._eval_steps)

    def on_train_batch_end(self, trainer: LightningTrainer, module: FrozenTargetModule, *_: Any) -> None:  # type: ignore[override]
        step = trainer.global_step
        if not self._patience_exhausted and (step % self._eval_steps == 0 or step == self._steps):
            self._evaluate(module)
        if self._patience_exhausted:
            trainer.should_stop = True

    @property
    def _patience_exhausted(self) -> bool:
        return bool(self.losses) and len(self.losses) - 1 - self.best_check >= self._patience

    @torch.no_grad()
    def _evaluate(self, module: FrozenTargetModule) -> None:
        self.losses.append(float(module.loss(self._held_out.to(module.device))))
        if self.best_check == len(self.losses) - 1:
            self._best_weights = copy.deepcopy(module.trained_module.state_dict())

    def restore_best(self, module: FrozenTargetModule) -> None:
        module.trained_module.load_state_dict(self._best_weights)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "weights": self._best_weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.losses, self._best_weights = list(state_dict["losses"]), state_dict["weights"]


SAVE_EVERY_STEPS = 100


def train(
    module: FrozenTargetModule,
    trace: HiddenStateTrace,
    split: TextSplit,
    recipe: HATRecipe,
    seed: int,
    trainer: Trainer,
    work: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Trains `module`, whose weights are then the best ones; says how long and how well.

    Held-out loss and agreement are those of answers: what is served are answers. The same seed gives the same weights
    on one machine, with an interruption or without.
    """
    loader = HiddenStateLoader(trace, split.train, recipe.batch_size, recipe.steps, recipe.prompt_loss_weight, seed)
    diary = StepHistory(recipe.steps, progress)
    best = EarlyStoppingByStep(collate(trace, split.validation, 0.0), recipe.eval_steps, recipe.steps, recipe.patience)
    with trainer.using_threads() as threads:
        callbacks = [diary, best, Checkpointer(work, SAVE_EVERY_STEPS)]
        trainer.fit(module, loader, callbacks, checkpoint=work / CHECKPOINT_FILE)
        best.restore_best(module)
        module.eval().to("cpu")
        agreement = module.top1_agreement(collate(trace, split.test, 0.0))
    return {
        "recipe": asdict(recipe),
        "seed": seed,
        "texts": {name: len(part) for name, part in asdict(split).items()},
        "parameters": sum(weight.numel() for weight in module.trained_module.parameters()),
        "steps": len(diary.losses),
        "best_step": best.best_step,
        "validation_losses": [round(loss, 5) for loss in best.losses],
        "test_agreement": agreement,
        "training_s": sum(diary.step_times_s),
        "p10_step_s": diary.p10_step_s(),
        "threads": threads,
    }
