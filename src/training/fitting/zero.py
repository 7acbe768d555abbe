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

from training.fitting.callbacks import Checkpointer

ELEMENTWISE_OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers that may be given flat pieces of weights; another one gets whole weights, and shares no states."""


@dataclass
class TrainerState:
    """What callbacks are shown in the place of Lightning's trainer."""

    global_step: int = 0
    should_stop: bool = False


@dataclass(frozen=True)
class ZeroRankConfig:
    """One process's place among those that train."""

    rank: int
    world_size: int
    zero_stage: int
    threads: int
    rendezvous_file: str
    """A file in which they find each other."""
    result_pipe: Connection | None
    """The first one's line to whoever waits for the weights."""


class TrainingStepModule(nn.Module):
    """A lesson's training step as the forward pass that DeepSpeed wants."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module
        self._takes_batch_index = len(signature(module.training_step).parameters) > 1

    def forward(self, batch: Any, index: int) -> Tensor:
        step: Any = self.module.training_step
        loss: Tensor = step(batch, index) if self._takes_batch_index else step(batch)
        return loss


def fit(module: LightningModule, loader: Any, callbacks: Sequence[Any], zero_stage: int, devices: int) -> None:
    """Trains in `devices` processes of their own; after each step callbacks find the weights in `module`.

    Each process runs `training_step` on every batch, and gradients are averaged: who wants to share a batch takes
    the part of its rank there. Nothing is saved in between: an interrupted training begins anew. Raises RuntimeError
    where a process ends before its time.
    """
    context = multiprocessing.get_context("spawn")  # DeepSpeed keeps its groups for as long as a process lives
    module.train().share_memory()
    ours, theirs = context.Pipe()
    with TemporaryDirectory() as meeting:
        seats = [
            ZeroRankConfig(
                rank, devices, zero_stage, torch.get_num_threads(), f"{meeting}/store", None if rank else theirs
            )
            for rank in range(devices)
        ]
        started = [context.Process(target=_train_rank, args=(seat, module, loader), daemon=True) for seat in seats]
        try:
            for process in started:
                process.start()
            theirs.close()
            _run_callbacks(
                ours, module, [each for each in callbacks if not isinstance(each, Checkpointer)], len(loader)
            )
        finally:
            for process in started:
                process.terminate()
                process.join()
    for weight in module.parameters():
        weight.data = weight.data.clone()


def _run_callbacks(result_pipe: Connection, module: LightningModule, callbacks: Sequence[Any], steps: int) -> None:
    watched = TrainerState()
    while watched.global_step < steps and not watched.should_stop:
        for callback in callbacks:
            callback.on_train_batch_start(watched, module, None, watched.global_step)
        try:
            loss: float = result_pipe.recv()
        except EOFError:
            raise RuntimeError(
                f"a process of the ZeRO training ended in step {watched.global_step + 1} of {steps}; it says above why"
            ) from None
        watched.global_step += 1
        for callback in callbacks:
            callback.on_train_batch_end(watched, module, {"loss": loss}, None, watched.global_step - 1)
        result_pipe.send(watched.should_stop)


def _train_rank(rank_config: ZeroRankConfig, module: LightningModule, loader: Any) -> None:
    """What one process does until it is stopped, or every batch was seen."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever waits decides
    torch.set_num_threads(rank_config.threads)
    own = [weight for weight in module.parameters() if weight.requires_grad]
    shown = [weight.data for weight in own]
    for weight in module.parameters():  # all processes were given the same memory
        weight.data = weight.data.clone()
    with _process_group(rank_config):
        engine = _init_engine(module, rank_config)
        for index, batch in enumerate(loader):
            loss = _train_step(engine, batch, index) / rank_config.world_size
            if _publish_and_check_stop(rank_config, loss, own, shown):
                break


def _train_step(engine: Any, batch: Any, index: int) -> Tensor:
    """The loss, summed over the processes."""
    loss: Tensor = engine(batch, index)
    engine.backward(loss)
    engine.step()
    loss = loss.detach().clone()
    distributed.all_reduce(loss)
    return loss


@torch.no_grad()
def _publish_and_check_stop(
    rank_config: ZeroRankConfig, loss: Tensor, weights: Sequence[Tensor], shared_weights: Sequence[Tensor]
) -> bool:
    """The first process shows its weights and asks; all do as it was told."""
    stop = torch.tensor(False)
    if rank_config.result_pipe is not None:
        for weight, place in zip(weights, shared_weights, strict=True):
            place.copy_(weight)
        rank_config.result_pipe.send(float(loss))
        stop.fill_(rank_config.result_pipe.recv())
    distributed.broadcast(stop, 0)
    return bool(stop)


def _init_engine(module: LightningModule, rank_config: ZeroRankConfig) -> Any:
    import deepspeed  # type: ignore[import-untyped]
    from deepspeed.ops import __compatible_ops__ as operations  # type: ignore[import-untyped]

    operations["deepspeed_shm_comm"] = False  # else it compiles a kernel
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    found = _optimizer_config(module)
    config = {
        "train_batch_size": rank_config.world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": effective_stage(module, rank_config.zero_stage)},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }
    scheduler = found["lr_scheduler"]["scheduler"] if "lr_scheduler" in found else None
    return deepspeed.initialize(
        model=TrainingStepModule(module),
        optimizer=found["optimizer"],
        lr_scheduler=scheduler,
        config=config,
        dist_init_required=False,
    )[0]


def effective_stage(module: LightningModule, zero_stage: int) -> int:
    """Of ZeRO: as asked, or 0 where the lesson's optimizer needs whole weights."""
    return zero_stage if isinstance(_optimizer_config(module)["optimizer"], ELEMENTWISE_OPTIMIZERS) else 0


def _optimizer_config(module: LightningModule) -> Mapping[str, Any]:
    made: Any = module.configure_optimizers()
    return made if isinstance(made, Mapping) else {"optimizer": made}


@contextmanager
def _process_group(rank_config: ZeroRankConfig) -> Iterator[None]:
    """Among the others, and without deprecations of torch's that DeepSpeed walks into."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "LOCAL_RANK": "0",
        "RANK": str(rank_config.rank),
        "WORLD_SIZE": str(rank_config.world_size),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        distributed.init_process_group(
            "gloo", f"file://{rank_config.rendezvous_file}", rank=rank_config.rank, world_size=rank_config.world_size
        )  # fmt: skip
        try:
            yield
        finally:
            distributed.destroy_process_group()
