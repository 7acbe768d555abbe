"""ZeRO on the CPU through DeepSpeed itself, which Lightning's strategy refuses: a few processes over gloo."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, distributed, multiprocessing, nn

from training.fitting.callbacks import Bookmark

ELEMENTWISE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers that may be given flat pieces of weights; another one gets whole weights, and shares no states."""


@dataclass
class Watched:
    """What callbacks are shown in the place of Lightning's trainer."""

    global_step: int = 0
    should_stop: bool = False


@dataclass(frozen=True)
class Seat:
    """One process's place among those that train."""

    rank: int
    devices: int
    zero: int
    threads: int
    meeting: str
    """A file in which they find each other."""
    report: Connection | None
    """The first one's line to whoever waits for the weights."""


class Step(nn.Module):
    """A lesson's training step as the forward pass that DeepSpeed wants."""

    def __init__(self, lesson: LightningModule) -> None:
        super().__init__()
        self.lesson = lesson
        self._numbered = len(signature(lesson.training_step).parameters) > 1

    def forward(self, batch: Any, index: int) -> Tensor:
        step: Any = self.lesson.training_step
        loss: Tensor = step(batch, index) if self._numbered else step(batch)
        return loss


def fit(lesson: LightningModule, loader: Any, callbacks: Sequence[Any], zero: int, devices: int) -> None:
    """Trains in `devices` processes of their own; after each step callbacks find the weights in `lesson`.

    Each process runs `training_step` on every batch, and gradients are averaged: who wants to share a batch takes
    the part of its rank there. Nothing is saved in between: an interrupted training begins anew. Raises RuntimeError
    where a process ends before its time.
    """
    context = multiprocessing.get_context("spawn")  # DeepSpeed keeps its groups for as long as a process lives
    lesson.train().share_memory()
    ours, theirs = context.Pipe()
    with TemporaryDirectory() as meeting:
        seats = [
            Seat(rank, devices, zero, torch.get_num_threads(), f"{meeting}/store", None if rank else theirs)
            for rank in range(devices)
        ]
        started = [context.Process(target=_train, args=(seat, lesson, loader), daemon=True) for seat in seats]
        try:
            for process in started:
                process.start()
            theirs.close()
            _watch(ours, lesson, [each for each in callbacks if not isinstance(each, Bookmark)], len(loader))
        finally:
            for process in started:
                process.terminate()
                process.join()
    for weight in lesson.parameters():
        weight.data = weight.data.clone()


def _watch(line: Connection, lesson: LightningModule, callbacks: Sequence[Any], steps: int) -> None:
    watched = Watched()
    while watched.global_step < steps and not watched.should_stop:
        for callback in callbacks:
            callback.on_train_batch_start(watched, lesson, None, watched.global_step)
        try:
            loss: float = line.recv()
        except EOFError:
            raise RuntimeError(
                f"a process of the ZeRO training ended in step {watched.global_step + 1} of {steps}; it says above why"
            ) from None
        watched.global_step += 1
        for callback in callbacks:
            callback.on_train_batch_end(watched, lesson, {"loss": loss}, None, watched.global_step - 1)
        line.send(watched.should_stop)


def _train(seat: Seat, lesson: LightningModule, loader: Any) -> None:
    """What one process does until it is stopped, or every batch was seen."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever waits decides
    torch.set_num_threads(seat.threads)
    own = [weight for weight in lesson.parameters() if weight.requires_grad]
    shown = [weight.data for weight in own]
    for weight in lesson.parameters():  # all processes were given the same memory
        weight.data = weight.data.clone()
    with _group(seat):
        engine = _engine(lesson, seat)
        for index, batch in enumerate(loader):
            loss = _step(engine, batch, index) / seat.devices
            if _stopped(seat, loss, own, shown):
                break


def _step(engine: Any, batch: Any, index: int) -> Tensor:
    """The loss, summed over the processes."""
    loss: Tensor = engine(batch, index)
    engine.backward(loss)
    engine.step()
    loss = loss.detach().clone()
    distributed.all_reduce(loss)
    return loss


@torch.no_grad()
def _stopped(seat: Seat, loss: Tensor, own: Sequence[Tensor], shown: Sequence[Tensor]) -> bool:
    """The first process shows its weights and asks; all do as it was told."""
    stop = torch.tensor(False)
    if seat.report is not None:
        for weight, place in zip(own, shown, strict=True):
            place.copy_(weight)
        seat.report.send(float(loss))
        stop.fill_(seat.report.recv())
    distributed.broadcast(stop, 0)
    return bool(stop)


def _engine(lesson: LightningModule, seat: Seat) -> Any:
    import deepspeed  # type: ignore[import-untyped]
    from deepspeed.ops import __compatible_ops__ as operations  # type: ignore[import-untyped]

    operations["deepspeed_shm_comm"] = False  # else it compiles a kernel
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    found = _configured(lesson)
    config = {
        "train_batch_size": seat.devices,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage(lesson, seat.zero)},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }
    scheduler = found["lr_scheduler"]["scheduler"] if "lr_scheduler" in found else None
    return deepspeed.initialize(
        model=Step(lesson),
        optimizer=found["optimizer"],
        lr_scheduler=scheduler,
        config=config,
        dist_init_required=False,
    )[0]


def stage(lesson: LightningModule, zero: int) -> int:
    """Of ZeRO: as asked, or 0 where the lesson's optimizer needs whole weights."""
    return zero if isinstance(_configured(lesson)["optimizer"], ELEMENTWISE) else 0


def _configured(lesson: LightningModule) -> Mapping[str, Any]:
    made: Any = lesson.configure_optimizers()
    return made if isinstance(made, Mapping) else {"optimizer": made}


@contextmanager
def _group(seat: Seat) -> Iterator[None]:
    """Among the others, and without deprecations of torch's that DeepSpeed walks into."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "RANK": str(seat.rank), "WORLD_SIZE": str(seat.devices)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        distributed.init_process_group(
            "gloo", f"file://{seat.meeting}", rank=seat.rank, world_size=seat.devices
        )  # fmt: skip
        try:
            yield
        finally:
            distributed.destroy_process_group()
