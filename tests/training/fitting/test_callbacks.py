"""A checkpoint replaces the one before, whether the strategy writes a file or a folder, and by one process alone; the
best weights are those of the lowest number."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch

from training.fitting.callbacks import CHECKPOINT_FILE, BestWeights, Checkpointer, restore_checkpoint


@dataclass
class FakeTrainer:
    """As much of Lightning's trainer as a checkpointer uses; it writes the step's number."""

    writes_folder: bool
    is_global_zero: bool = True
    global_step: int = 0
    watched: Path | None = None
    seen_at_barriers: list[bool] = field(default_factory=list)
    """Whether `watched` existed at each."""

    @property
    def strategy(self) -> Any:
        return self

    def barrier(self, _name: str) -> None:
        self.seen_at_barriers.append(self.watched is not None and self.watched.exists())

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


def test_the_first_process_renames_before_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT_FILE
    for is_first in (False, True):
        trainer: Any = FakeTrainer(writes_folder=True, is_global_zero=is_first, global_step=3, watched=path)
        Checkpointer(tmp_path, 3).on_train_batch_end(trainer)
        assert trainer.seen_at_barriers == [False, is_first]
        assert path.exists() == is_first


@pytest.mark.parametrize("writes_folder", [False, True])
@pytest.mark.parametrize("left_folder", [False, True])
def test_what_a_killed_process_left_is_no_part_of_the_next_checkpoint(
    tmp_path: Path, left_folder: bool, writes_folder: bool
) -> None:
    left = tmp_path / CHECKPOINT_FILE.replace(".ckpt", ".part")
    if left_folder:
        (left / "checkpoint").mkdir(parents=True)
        (left / "checkpoint" / "shard of a rank that is gone").touch()
    else:
        left.write_text("half")
    trainer: Any = FakeTrainer(writes_folder, global_step=3)
    Checkpointer(tmp_path, 3).on_train_batch_end(trainer)
    assert saved(tmp_path / CHECKPOINT_FILE) == "3"
    assert len(list(tmp_path.rglob("*"))) == (3 if writes_folder else 1)


def test_a_process_killed_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT_FILE
    trainer: Any = FakeTrainer(writes_folder=True, global_step=3)
    Checkpointer(tmp_path, 3).on_train_batch_end(trainer)
    path.rename(path.with_suffix(".old"))
    restore_checkpoint(path)
    assert saved(path) == "3"
    trainer.global_step = 6
    Checkpointer(tmp_path, 3).on_train_batch_end(trainer)
    restore_checkpoint(path)
    assert saved(path) == "6"


@pytest.mark.parametrize(("values", "best"), [([nan, 2.0, 1.0], 2), ([1.0, nan, 1.0], 0), ([2.0, 1.0, nan], 1)])
def test_a_value_that_is_not_a_number_is_never_the_best(values: list[float], best: int) -> None:
    callback, module = BestWeights(), torch.nn.Linear(1, 1, bias=False)
    for index, value in enumerate(values):
        torch.nn.init.constant_(module.weight, index)
        callback.add(value, module)
    callback.restore_best(module)
    assert (callback.best_index, module.weight.item()) == (best, best)


def test_a_training_without_one_number_has_diverged() -> None:
    callback, module = BestWeights(), torch.nn.Linear(1, 1)
    callback.add(nan, module)
    with pytest.raises(ValueError, match=r"the training diverged.*in any of 1 evaluations; lower the learning rate"):
        callback.restore_best(module)
