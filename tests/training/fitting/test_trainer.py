from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from training.fitting.batches import ResumableLoader
from training.fitting.callbacks import Checkpointer, StepHistory
from training.fitting.trainer import Trainer, _keep_keyboard_interrupt


def test_precision_follows_the_hardware_unless_named() -> None:
    assert Trainer(precision="fp32").dtype() == torch.float32
    assert Trainer(precision="bf16").dtype() == torch.bfloat16
    assert Trainer(accelerator="gpu").dtype() == torch.bfloat16
    assert Trainer().dtype() in (torch.bfloat16, torch.float32)


def test_the_number_of_threads_is_restored_after_training() -> None:
    before = torch.get_num_threads()
    with Trainer(threads=before + 1).using_threads() as threads:
        assert threads == torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


class Ones(ResumableLoader[torch.Tensor]):
    """Equal batches for Lightning's model of examples."""

    def batch(self, step: int) -> torch.Tensor:
        return torch.ones(1, 32)


@pytest.mark.parametrize("kept", [b"", b"PK\x03\x04 of which the end is lost"])
def test_a_checkpoint_that_lost_its_end_is_ignored_and_replaced(kept: bytes, tmp_path: Path) -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel

    (tmp_path / "last.ckpt").write_bytes(kept)
    trainer, seen = Trainer(threads=1, precision="fp32"), StepHistory(2, lambda *_: None)
    trainer.fit(BoringModel(), Ones(2), [seen, Checkpointer(tmp_path, 2)], tmp_path / "last.ckpt")
    assert len(seen.losses) == 2
    trainer.fit(BoringModel(), Ones(2), [resumed := StepHistory(2, lambda *_: None)], tmp_path / "last.ckpt")
    assert resumed.losses == seen.losses, "the checkpoint that took its place is not read"


def test_training_on_the_cpu_does_not_warn_of_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lightning.pytorch.accelerators import MPSAccelerator
    from lightning.pytorch.demos.boring_classes import BoringModel

    monkeypatch.setattr(MPSAccelerator, "is_available", lambda: True)
    model = BoringModel()
    before = model.layer.weight.clone()
    Trainer(threads=1, precision="fp32").fit(model, Ones(2), [], tmp_path / "last.ckpt")
    assert not torch.equal(model.layer.weight, before)


def exit_like_lightning() -> None:
    with _keep_keyboard_interrupt():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise SystemExit(1)


def test_an_interrupt_while_training_is_raised_again() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        exit_like_lightning()
    assert signal.getsignal(signal.SIGINT) == handler


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accelerator": "tpu"}, "trainer.accelerator must be one of cpu, gpu, got 'tpu'"),
        ({"precision": "fp8"}, "trainer.precision must be one of auto, bf16, fp32, got 'fp8'"),
        ({"devices": 0}, "trainer.devices must be 1 or more"),
        ({"threads": -1}, "trainer.threads must be 0"),
    ],
)
def test_invalid_trainers_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trainer(**changes)  # type: ignore[arg-type]
