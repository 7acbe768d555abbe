"""ZeRO on the CPU, which Lightning's strategy refuses: processes over gloo that call DeepSpeed directly."""

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
from lightning.pytorch.plugins import DeepSpeedPrecision
from torch import Tensor, distributed, multiprocessing, nn

from training.fitting.callbacks import Checkpointer

ELEMENTWISE_OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers that work on flat pieces of weights. Any other one gets whole weights and shards nothing."""


class BatchPrecision(DeepSpeedPrecision):
    """For Lightning's strategy on GPUs: leaves batches as they are, where its own goes through their fields and refuses
    frozen ones.
    """

    def convert_input(self, data: Any) -> Any:
        return data


@dataclass
class TrainerState:
    """The part of Lightning's trainer that callbacks use."""

    global_step: int = 0
    should_stop: bool = False


@dataclass(frozen=True)
class ZeroRankConfig:
    """Configuration of one training process."""

    rank: int
    world_size: int
    zero_stage: int
    threads: int
    rendezvous_file: str
    """The file through which the processes find each other."""
    result_pipe: Connection | None
    """Pipe of rank 0 to the process that runs the callbacks; None for other ranks."""


class TrainingStepModule(nn.Module):
    """A module's training step as the forward pass that DeepSpeed expects."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module
        self._takes_batch_index = len(signature(module.training_step).parameters) > 1

    def forward(self, batch: Any, index: int) -> Tensor:
        step: Any = self.module.training_step
        loss: Tensor = step(batch, index) if self._takes_batch_index else step(batch)
        return loss


def fit(module: LightningModule, loader: Any, callbacks: Sequence[Any], zero_stage: int, devices: int) -> None:
    """Trains in `devices` new processes. After each step callbacks find the weights in `module`.

    Each process runs `training_step` on every batch, and gradients are averaged. A module that shards batches takes
    its rank's part there. Nothing is saved in between: an interrupted training starts again. Raises RuntimeError if a
    process ends too early.
    """
    context = multiprocessing.get_context("spawn")  # DeepSpeed keeps its groups for as long as a process lives
    module.train().share_memory()
    ours, theirs = context.Pipe()
    with TemporaryDirectory() as folder:
        ranks = [
            ZeroRankConfig(
                rank, devices, zero_stage, torch.get_num_threads(), f"{folder}/store", None if rank else theirs
            )
            for rank in range(devices)
        ]
        processes = [context.Process(target=_train_rank, args=(rank, module, loader), daemon=True) for rank in ranks]
        try:
            for process in processes:
                process.start()
            theirs.close()
            _run_callbacks(
                ours, module, [each for each in callbacks if not isinstance(each, Checkpointer)], len(loader)
            )
        finally:
            for process in processes:
                process.terminate()
                process.join()
    for weight in module.parameters():
        weight.data = weight.data.clone()


def _run_callbacks(result_pipe: Connection, module: LightningModule, callbacks: Sequence[Any], steps: int) -> None:
    trainer = TrainerState()
    while trainer.global_step < steps and not trainer.should_stop:
        for callback in callbacks:
            callback.on_train_batch_start(trainer, module, None, trainer.global_step)
        try:
            loss: float = result_pipe.recv()
        except EOFError:
            raise RuntimeError(
                f"a process of the ZeRO training ended in step {trainer.global_step + 1} of {steps}; its error is above"
            ) from None
        trainer.global_step += 1
        for callback in callbacks:
            callback.on_train_batch_end(trainer, module, {"loss": loss}, None, trainer.global_step - 1)
        result_pipe.send(trainer.should_stop)


def _train_rank(rank_config: ZeroRankConfig, module: LightningModule, loader: Any) -> None:
    """Trains in one process until rank 0 is told to stop or every batch was used."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides
    torch.set_num_threads(rank_config.threads)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    shared_weights = [weight.data for weight in weights]
    for weight in module.parameters():  # all processes share this memory
        weight.data = weight.data.clone()
    with _process_group(rank_config):
        engine = _init_engine(module, rank_config)
        for index, batch in enumerate(loader):
            loss = _train_step(engine, batch, index) / rank_config.world_size
            if _publish_and_check_stop(rank_config, loss, weights, shared_weights):
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
    """Rank 0 copies its weights to the shared memory and asks whether to stop; all ranks get the answer."""
    stop = torch.tensor(False)
    if rank_config.result_pipe is not None:
        for weight, target in zip(weights, shared_weights, strict=True):
            target.copy_(weight)
        rank_config.result_pipe.send(float(loss))
        stop.fill_(rank_config.result_pipe.recv())
    distributed.broadcast(stop, 0)
    return bool(stop)


def _init_engine(module: LightningModule, rank_config: ZeroRankConfig) -> Any:
    import deepspeed  # type: ignore[import-untyped]
    from deepspeed.ops import __compatible_ops__ as operations  # type: ignore[import-untyped]

    operations["deepspeed_shm_comm"] = False  # otherwise it compiles a kernel
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
    """`zero_stage`, or 0 if the module's optimizer needs whole weights."""
    return zero_stage if isinstance(_optimizer_config(module)["optimizer"], ELEMENTWISE_OPTIMIZERS) else 0


def _optimizer_config(module: LightningModule) -> Mapping[str, Any]:
    made: Any = module.configure_optimizers()
    return made if isinstance(made, Mapping) else {"optimizer": made}


@contextmanager
def _process_group(rank_config: ZeroRankConfig) -> Iterator[None]:
    """Joins the process group, without torch's deprecation warnings that DeepSpeed causes."""
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
        )
        try:
            yield
        finally:
            distributed.destroy_process_group()
