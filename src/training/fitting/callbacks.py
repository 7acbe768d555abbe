"""What happens around a training's steps: it is shown, written down, and saved so that it can continue."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer

from serving.progress import Progress

CHECKPOINT_FILE = "last.ckpt"


class StepHistory(Callback):
    """Every step's loss and seconds, kept through a restart, and shown as they come."""

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
        """The 10th percentile of a step's seconds: what a step takes when nobody else uses the machine."""
        return sorted(self.step_times_s)[len(self.step_times_s) // 10]


class Checkpointer(Callback):
    """Saves everything that continuing needs, every so many steps; the file is whole or the previous one."""

    def __init__(self, work: Path, every_steps: int) -> None:
        self._path, self._every_steps = work / CHECKPOINT_FILE, every_steps

    def on_train_batch_end(self, trainer: LightningTrainer, *_: Any) -> None:
        if trainer.global_step % self._every_steps == 0:
            fresh = self._path.with_suffix(".part")
            trainer.save_checkpoint(fresh)
            fresh.replace(self._path)
