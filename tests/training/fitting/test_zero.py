"""ZeRO trains the weights of one process; unsupported settings are refused at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, distributed, nn

from training.embedded_pair.packing import PackedSequences
from training.fitting.callbacks import CHECKPOINT_FILE, Checkpointer
from training.fitting.trainer import Trainer


def test_deepspeed_on_a_missing_gpu_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"refuses the CPU, and torch sees no GPU here\. Set trainer\.accelerator=cpu"):
        Trainer(accelerator="gpu", strategy="deepspeed")


def test_deepspeed_on_a_gpu_takes_batches_that_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    strategy = Trainer(accelerator="gpu", strategy="deepspeed")._lightning_strategy(Sum())
    batch = PackedSequences(*[torch.ones(2, 3)] * 4)
    assert strategy.precision_plugin.convert_input(batch) is batch


def test_stages_of_zero_are_0_1_and_2() -> None:
    with pytest.raises(ValueError, match=r"trainer\.zero_stage must be one of 0, 1, 2, got 3"):
        Trainer(strategy="deepspeed", zero_stage=3)


class Sum(LightningModule):
    """Two weights that are to add up to what a batch says; each process looks at a part of it."""

    def __init__(self, fails_in: int = -1) -> None:
        super().__init__()
        self.weights = nn.Linear(4, 1, bias=False)
        nn.init.ones_(self.weights.weight)
        self._fails_in = fails_in

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        if index == self._fails_in:
            raise ValueError("told to fail")
        own = batch
        if distributed.is_initialized():
            own = batch[distributed.get_rank() :: distributed.get_world_size()]
        loss: Tensor = (self.weights(own) - own.sum(-1, keepdim=True) * 0.5).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


class Rows:
    """Eight batches of four rows."""

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[Tensor]:
        for step in range(8):
            yield torch.randn(4, 4, generator=torch.Generator().manual_seed(step))


def trained(trainer: Trainer, until: int, folder: Path) -> tuple[Tensor, list[float]]:
    """The weights that a callback saw last, and the losses."""
    lesson, losses, seen = Sum(), list[float](), list[Tensor]()

    class Watching(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            losses.append(float(outputs["loss"]))
            seen.append(module.weights.weight.detach().clone())
            trainer.should_stop = trainer.global_step == until

    trainer.fit(lesson, Rows(), [Watching()], folder / "none.ckpt")
    assert torch.equal(seen[-1], lesson.weights.weight)
    return seen[-1], losses


def test_a_checkpoint_of_deepspeed_is_ignored_and_replaced_by_others(tmp_path: Path) -> None:
    checkpoint = tmp_path / CHECKPOINT_FILE
    (checkpoint / "checkpoint").mkdir(parents=True)
    lesson = Sum()
    Trainer(threads=1).fit(lesson, Rows(), [Checkpointer(tmp_path, 8)], checkpoint)
    assert checkpoint.is_file()
    again = Sum()
    Trainer(threads=1).fit(again, Rows(), [], checkpoint)  # goes on from its end: there is no step left
    assert torch.equal(again.weights.weight, lesson.weights.weight)


@pytest.mark.slow
def test_two_processes_train_the_same_weights_as_one(tmp_path: Path) -> None:
    """Within 1e-6: gradients are averaged in another order. A callback stops both of them."""
    one, losses = trained(Trainer(threads=1), 6, tmp_path)
    two, again = trained(Trainer(threads=1, strategy="deepspeed", devices=2), 6, tmp_path)
    assert len(losses) == len(again) == 6
    assert torch.allclose(one, two, atol=1e-6)
    assert losses == pytest.approx(again, rel=1e-5)
    assert not torch.equal(one, torch.ones(1, 4))


@pytest.mark.slow
def test_a_failing_process_ends_the_whole_training(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended in step 3 of 8; its error is above"):
        Trainer(threads=1, strategy="deepspeed", devices=2).fit(Sum(fails_in=2), Rows(), [], tmp_path / "none.ckpt")
