"""What happens around a training's steps: it is shown, written down, and saved so that it can continue."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer

from serving.progress import Progress

CHECKPOINT = "last.ckpt"


class Diary(Callback):
    """Every step's loss and seconds, kept through a restart, and shown as they come."""

    def __init__(self, steps: int, progress: Progress) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._steps, self._progress, self._began = steps, progress, 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, trainer: LightningTrainer, _: LightningModule, outputs: Any, *__: Any) -> None:
        self.losses.append(float(outputs["loss"]))
        self.seconds.append(time.perf_counter() - self._began)
        recent = self.seconds[-20:]
        note = f"loss {self.losses[-1]:.3f}, {len(recent) / sum(recent):.1f} steps/s"
        self._progress(trainer.global_step, self._steps, note)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "seconds": list(self.seconds)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.losses, self.seconds = list(state_dict["losses"]), list(state_dict["seconds"])

    def quiet_step_s(self) -> float:
        """The 10th percentile of a step's seconds: what a step takes when nobody else uses the machine."""
        return sorted(self.seconds)[len(self.seconds) // 10]


class Bookmark(Callback):
    """Saves everything that continuing needs, every so many steps; the file is whole or the previous one."""

    def __init__(self, work: Path, every_steps: int) -> None:
        self._path, self._every_steps = work / CHECKPOINT, every_steps

    def on_train_batch_end(self, trainer: LightningTrainer, *_: Any) -> None:
        if trainer.global_step % self._every_steps == 0:
            fresh = self._path.with_suffix(".part")
            trainer.save_checkpoint(fresh)
            fresh.replace(self._path)
