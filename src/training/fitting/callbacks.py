"""Lightning callbacks: the history of steps, checkpoints, and the best weights with early stopping."""

import copy
import shutil
import time
from math import isnan
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer

from serving.progress import Progress

CHECKPOINT_FILE = "last.ckpt"
VALIDATION_LOSS = "validation_loss"
"""Name under which modules log the loss that `EarlyStoppingByEpoch` reads."""


class StepHistory(Callback):
    """Keeps every step's loss and seconds through a restart, and reports them as progress."""

    def __init__(self, steps: int, progress: Progress) -> None:
        self.losses: list[float] = []
        self.step_times_s: list[float] = []
        self._steps, self._progress, self._step_start_s = steps, progress, 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self._step_start_s = time.perf_counter()

    def on_train_batch_end(self, trainer: LightningTrainer, _: LightningModule, outputs: Any, *__: Any) -> None:
        self.losses.append(float(outputs["loss"]))
        self.step_times_s.append(time.perf_counter() - self._step_start_s)
        recent = self.step_times_s[-20:]
        note = f"loss {self.losses[-1]:.3f}, {len(recent) / sum(recent):.1f} steps/s"
        self._progress(trainer.global_step, self._steps, note)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "step_times_s": list(self.step_times_s)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.losses, self.step_times_s = list(state_dict["losses"]), list(state_dict["step_times_s"])

    def p10_step_s(self) -> float:
        """The 10th percentile of the steps' seconds: a step's time when no other process uses the machine."""
        return sorted(self.step_times_s)[len(self.step_times_s) // 10]


class Checkpointer(Callback):
    """Saves the whole training state every `every_steps` steps; what was saved before stays until then.

    A file, or a folder where the strategy writes one (DeepSpeed's, to which every process adds its part).
    """

    def __init__(self, work: Path, every_steps: int) -> None:
        self._path, self._every_steps = work / CHECKPOINT_FILE, every_steps

    def on_train_batch_end(self, trainer: LightningTrainer, *_: Any) -> None:
        if trainer.global_step % self._every_steps:
            return
        fresh = self._path.with_suffix(".part")
        if trainer.is_global_zero:
            _remove(fresh)  # of a process that was killed while it saved, perhaps by another strategy
        trainer.strategy.barrier("before a checkpoint")
        trainer.save_checkpoint(fresh)
        if trainer.is_global_zero:
            _replace(self._path, fresh)
        trainer.strategy.barrier("behind a checkpoint")


def restore_checkpoint(path: Path) -> None:
    """Puts back what `_replace` had set aside when its process was killed."""
    aside = path.with_suffix(".old")
    if aside.exists() and not path.exists():
        aside.rename(path)


def _replace(path: Path, fresh: Path) -> None:
    """Renames `fresh` to `path`: a file over a file at once; else what was there goes aside first."""
    if fresh.is_dir() or path.is_dir():
        aside = path.with_suffix(".old")
        _remove(aside)
        if path.exists():
            path.rename(aside)
        fresh.rename(path)
        _remove(aside)
    else:
        fresh.replace(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class BestWeights(Callback):
    """Base class: keeps a copy of the weights that had the lowest value so far. Both survive a restart."""

    def __init__(self) -> None:
        self.values: list[float] = []
        """The held-out value of every evaluation."""
        self._best_weights: dict[str, Any] = {}

    @property
    def best_index(self) -> int:
        """Index of the evaluation with the lowest value; a value that is not a number is above all others."""
        return min(range(len(self.values)), key=lambda index: (isnan(self.values[index]), self.values[index]))

    def add(self, value: float, module: torch.nn.Module) -> None:
        """Appends the value of an evaluation, and copies the weights of `module` if it is the lowest."""
        self.values.append(value)
        if self.best_index == len(self.values) - 1:
            self._best_weights = copy.deepcopy(module.state_dict())

    def without_improvement(self) -> int:
        """Evaluations since the best one."""
        return len(self.values) - 1 - self.best_index

    def restore_best(self, module: torch.nn.Module) -> None:
        """Loads the best weights into the module that they were copied from.

        Raises ValueError if the value was not a number in every evaluation.
        """
        if all(map(isnan, self.values)):
            raise ValueError(
                f"the training diverged: the held-out loss was not a number in any of {len(self.values)} evaluations; "
                "lower the learning rate of the recipe"
            )
        module.load_state_dict(self._best_weights)

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values), "weights": self._best_weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values, self._best_weights = list(state_dict["values"]), state_dict["weights"]


class EarlyStoppingByEpoch(BestWeights):
    """Evaluates by the logged validation loss; stops after `patience` epochs without a lower one."""

    def __init__(self, patience: int, epochs: int, progress: Progress) -> None:
        super().__init__()
        self._patience, self._epochs, self._progress = patience, epochs, progress

    def on_validation_epoch_end(self, trainer: LightningTrainer, module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.add(float(trainer.callback_metrics[VALIDATION_LOSS]), module)
        if self.without_improvement() >= self._patience:
            trainer.should_stop = True
        note = f"validation loss {self.values[-1]:.4f}, best {min(self.values):.4f}"
        self._progress(len(self.values), self._epochs, note)

    def summary(self) -> dict[str, Any]:
        """Epochs, the best one counted from 1, and all validation losses."""
        losses = [round(loss, 5) for loss in self.values]
        return {"epochs": len(losses), "best_epoch": 1 + self.best_index, "validation_losses": losses}


class BestWeightsByStep(BestWeights):
    """Base class: there is an evaluation every `eval_steps` steps, and one at the last of `steps`."""

    def __init__(self, eval_steps: int, steps: int) -> None:
        super().__init__()
        self._eval_steps, self._steps = eval_steps, steps

    @property
    def best_step(self) -> int:
        """Steps taken before the best evaluation."""
        return min(self._steps, (self.best_index + 1) * self._eval_steps)

    def is_evaluated(self, step: int) -> bool:
        """True if there is an evaluation after this number of steps."""
        return step % self._eval_steps == 0 or step == self._steps


class EarlyStoppingByStep(BestWeightsByStep):
    """Evaluates the held-out loss; stops after `patience` evaluations without a lower one.

    Keeps the weights of the trained module's `trained_module`, and compares its `loss(batch)`.
    """

    def __init__(self, held_out: Any, eval_steps: int, steps: int, patience: int) -> None:
        super().__init__(eval_steps, steps)
        self._held_out, self._patience = held_out, patience

    def on_train_batch_end(self, trainer: LightningTrainer, module: Any, *_: Any) -> None:
        if not self._patience_exhausted and self.is_evaluated(trainer.global_step):
            with torch.no_grad():
                self.add(float(module.loss(self._held_out.to(module.device))), module.trained_module)
        if self._patience_exhausted:
            trainer.should_stop = True

    @property
    def _patience_exhausted(self) -> bool:
        return bool(self.values) and self.without_improvement() >= self._patience
