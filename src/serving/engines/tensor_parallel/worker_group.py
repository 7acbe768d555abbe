"""The processes that follow: started, told what to do, listened to, ended; nobody is waited for without end.

Opens a model in several processes: who cannot share it is told before any of them starts.
"""

import multiprocessing as mp
import socket
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from os import dup
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from serving.engines.tensor_parallel.commands import SYNC_TIMEOUT_S, RankConfig, TPCommand, check_divisible_heads
from serving.engines.tensor_parallel.shard import leave_process_group, load_shard, load_unsharded, run_worker
from serving.engines.torch.model import DecomposedModel, check_checkpoint
from serving.hardware.executor import FatalWorkError
from serving.messages import Span

_LOAD_TIMEOUT_S = 1800.0
"""How long reading a checkpoint may take."""
_EXIT_TIMEOUT_S = 5.0
"""How long a process that was told to stop may take."""
_FAILURE_GRACE_S = 1.0
"""How long others are listened to when one has failed: who died says nothing, and those whom it left behind do."""
_MAX_PENDING = 256
"""So many orders wait for the next that is urgent."""
_TIMED_OUT, _FAILED, _DIED = 1, 2, 3


class WorkerGroupError(FatalWorkError):
    """A process that holds a share of a model failed: what the others' caches hold is not known any more."""


@dataclass(frozen=True)
class _WorkerProcess:
    rank: int
    process: BaseProcess
    pipe: Connection

    @property
    def display_name(self) -> str:
        return f"rank {self.rank} (process {self.process.pid})"

    def receive_status(self) -> tuple[int, str]:
        """How bad it is, and what: (0, "") when all is well. Waits until there is one."""
        try:
            said = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(_FAILURE_GRACE_S)
            return _DIED, f"{self.display_name} died (exit code {self.process.exitcode})"
        return (0, "") if said is None else (_FAILED, f"{self.display_name} failed: {said}")


class WorkerGroup:
    """All processes that share a model but the one that leads, which is this one.

    They answer whatever they are told before they are told more. When one fails, dies or does not answer in time, all
    end; work raises a TeamError that says who it was, now and ever after. They end, too, when nobody refers to the
    team any more, and with this process, also where that is killed.
    """

    def __init__(self, configs: Sequence[RankConfig]) -> None:
        self._timeout_s, self._world_size = configs[0].timeout_s, configs[0].world_size
        self._workers = [_start_worker(seat) for seat in configs]
        self._pending: list[TPCommand] = []
        self._failure = ""
        self.close = weakref.finalize(self, _stop_workers, self._workers)
        """Ends them all; again it does nothing."""

    @property
    def pids(self) -> list[int | None]:
        return [each.process.pid for each in self._workers]

    def enqueue(self, command: TPCommand) -> None:
        """To be done before the next that is urgent."""
        self._pending.append(command)
        if len(self._pending) >= _MAX_PENDING:
            self.execute()

    def execute(self, *commands: TPCommand) -> None:
        """Returns when all have done it."""
        with self.executing(*commands):
            pass

    @contextmanager
    def executing(self, *commands: TPCommand) -> Iterator[None]:
        """All do it while this process does its own share inside."""
        self._check_alive()
        told, self._pending = (*self._pending, *commands), []
        with self.synchronized():
            for each in self._workers:
                each.pipe.send(told)
            yield

    @contextmanager
    def synchronized(self) -> Iterator[None]:
        """What all do by themselves, each its own share."""
        try:
            yield
        except Exception as problem:
            raise self._local_failure(problem) from problem
        self._await_workers(self._timeout_s)

    def wait_loaded(self) -> None:
        """Returns when all have read the checkpoint."""
        self._await_workers(_LOAD_TIMEOUT_S)

    def _await_workers(self, timeout_s: float) -> None:
        weight, what = self._worst_status(timeout_s)
        if weight:
            raise self._abort(what)

    def _check_alive(self) -> None:
        if self._failure:
            raise WorkerGroupError(self._failure)
        if not self.close.alive:
            raise WorkerGroupError("the processes that shared the model were told to stop")

    def _worst_status(self, timeout_s: float) -> tuple[int, str]:
        """The worst of them."""
        worst, deadline = (0, ""), monotonic() + timeout_s
        waiting: dict[Any, _WorkerProcess] = {each.pipe: each for each in self._workers}
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - monotonic()))
            if not ready:
                silent = ", ".join(each.display_name for each in waiting.values())
                return max(worst, (_TIMED_OUT, f"{silent} did not answer in {timeout_s:g} s"))
            worst = max(worst, *(waiting.pop(line).receive_status() for line in ready))
            if worst[0]:
                deadline = min(deadline, monotonic() + _FAILURE_GRACE_S)
        return worst

    def _local_failure(self, problem: Exception) -> WorkerGroupError:
        """Work failed here: because of one that is not there any more, if there is one."""
        weight, what = self._worst_status(_FAILURE_GRACE_S)
        if weight >= _FAILED:
            return self._abort(what)
        here = f"rank 0 (this process) failed: {type(problem).__name__}: {problem}"
        return self._abort(f"{what}, and {here}" if what else here)

    def _abort(self, reason: str) -> WorkerGroupError:
        self._failure = f"a model is shared by {self._world_size} processes, and {reason}; start this node again"
        for each in self._workers:
            each.process.kill()
        return WorkerGroupError(self._failure)


def _start_worker(config: RankConfig) -> _WorkerProcess:
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    _set_send_timeout(here, config.timeout_s)
    process = context.Process(target=run_worker, args=(config, there), name=f"rank-{config.rank}", daemon=True)
    process.start()
    there.close()
    return _WorkerProcess(config.rank, process, here)


def _set_send_timeout(pipe: Connection, timeout_s: float) -> None:
    """Sending to one that has stopped reading raises an OSError when its buffer has been full for so long."""
    with socket.socket(fileno=dup(pipe.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout_s), 0))


def _stop_workers(workers: Sequence[_WorkerProcess]) -> None:
    for each in workers:
        with suppress(OSError):
            each.pipe.send(None)
    leave_process_group()
    for each in workers:
        each.process.join(_EXIT_TIMEOUT_S)
        each.process.kill()
        each.process.join()
        each.pipe.close()


def load_tensor_parallel(
    path: str,
    world_size: int,
    *,
    dtype: str = "fp32",
    accelerator: str = "cpu",
    span: Span | None = None,
    timeout_s: float = SYNC_TIMEOUT_S,
) -> tuple[DecomposedModel, WorkerGroup]:
    """This process's share of a checkpoint, and the team that holds the others; of a `span` that alone.

    Every process reads the whole checkpoint and keeps its share, so memory must hold `world_size` copies for a moment.
    Raises ValueError for a model that cannot be parted so, too few GPUs, or a second one in this process; TeamError
    when a process does not come to its share.
    """
    check_checkpoint(path)
    _check_environment(path, world_size, accelerator)
    with TemporaryDirectory(prefix="tandem-") as folder:
        seats = [
            RankConfig(rank, world_size, path, dtype, accelerator, str(Path(folder) / "meeting"), span, timeout_s)
            for rank in range(world_size)
        ]
        team = WorkerGroup(seats[1:])
        try:
            causal = load_unsharded(seats[0])
            team.wait_loaded()
            with team.synchronized():
                model = load_shard(causal, seats[0])
        except BaseException:
            team.close()
            raise
    return model, team


def _check_environment(path: str, world_size: int, accelerator: str) -> None:
    import torch
    from torch import distributed
    from transformers import AutoConfig

    check_divisible_heads(world_size, AutoConfig.from_pretrained(path).to_dict(), path)
    if distributed.is_initialized():
        raise ValueError(
            f"model.cloud.tensor_parallel is {world_size}, and this process shares a model already; close that first, or set model.cloud.tensor_parallel=1"
        )
    if not accelerator.startswith("cpu") and torch.cuda.device_count() < world_size:
        raise ValueError(
            f"model.cloud.tensor_parallel is {world_size}, and torch sees {torch.cuda.device_count()} GPUs here; each process needs one "
            "of its own"
        )
