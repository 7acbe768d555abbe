"""A checkpoint replaces the one before, whether the strategy writes a file or a folder, and by one process alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from training.fitting.callbacks import CHECKPOINT_FILE, Checkpointer


@dataclass
class FakeTrainer:
    """As much of Lightning's trainer as a checkpointer uses; it writes the step's number."""

    writes_folder: bool
    is_global_zero: bool = True
    global_step: int = 0
    barriers: list[str] = field(default_factory=list)

    @property
    def strategy(self) -> Any:
        return self

    def barrier(self, name: str) -> None:
        self.barriers.append(name)

    def save_checkpoint(self, path: Path) -> None:
        if self.writes_folder:
            path = path / "checkpoint" / "states"
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(self.global_step))


def saved(path: Path) -> str:
    return (path / "checkpoint" / "states" if path.is_dir() else path).read_text()


@pytest.mark.parametrize("kinds", [(False, False), (True, True), (False, True), (True, False)])
def test_the_newest_checkpoint_is_kept_alone(tmp_path: Path, kinds: tuple[bool, bool]) -> None:
    for step, writes_folder in enumerate(kinds, start=1):
        trainer: Any = FakeTrainer(writes_folder, global_step=3 * step)
        Checkpointer(tmp_path, 3).on_train_batch_end(trainer)
        assert saved(tmp_path / CHECKPOINT_FILE) == str(3 * step)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_FILE]


def test_nothing_is_saved_between(tmp_path: Path) -> None:
    trainer: Any = FakeTrainer(writes_folder=False, global_step=4)
    Checkpointer(tmp_path, 3).on_train_batch_end(trainer)
    assert not list(tmp_path.iterdir())


def test_further_processes_save_their_part_and_rename_nothing(tmp_path: Path) -> None:
    trainer: Any = FakeTrainer(writes_folder=True, is_global_zero=False, global_step=3)
    Checkpointer(tmp_path, 3).on_train_batch_end(trainer)
    assert not (tmp_path / CHECKPOINT_FILE).exists()
    assert trainer.barriers  # they go on once the first process has renamed it
