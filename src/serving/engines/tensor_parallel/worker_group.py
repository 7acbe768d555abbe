"""Starts, commands and stops the worker processes of a tensor-parallel model. Every wait has a timeout."""

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
from serving.engines.torch.model import DecomposedModel, check_loadable
from serving.hardware.executor import FatalWorkError
from serving.messages import Span

_LOAD_TIMEOUT_S = 1800.0
"""For reading a checkpoint."""
_EXIT_TIMEOUT_S = 5.0
"""For a process to stop."""
_FAILURE_GRACE_S = 1.0
"""How long to wait for the status of the other processes after one failed; it may name the cause."""
_MAX_PENDING = 256
"""Queued commands are sent when there are so many."""
_TIMED_OUT, _FAILED, _DIED = 1, 2, 3


class WorkerGroupError(FatalWorkError):
    """A process of the group failed, so the state of the caches is unknown."""


@dataclass(frozen=True)
class _WorkerProcess:
    rank: int
    process: BaseProcess
    pipe: Connection

    @property
    def display_name(self) -> str:
        return f"rank {self.rank} (process {self.process.pid})"

    def receive_status(self) -> tuple[int, str]:
        """(severity, text) of the next status; (0, "") for success. Blocks until it arrives."""
        try:
            status = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(_FAILURE_GRACE_S)
            return _DIED, f"{self.display_name} died (exit code {self.process.exitcode})"
        return (0, "") if status is None else (_FAILED, f"{self.display_name} failed: {status}")


class WorkerGroup:
    """All processes of a model except rank 0, which is this one.

    Each batch of commands is acknowledged before the next. If a process fails, dies or times out, all are killed, and
    this and all later work raises a WorkerGroupError that names the process. The processes also end when the group is
    garbage-collected, and when this process ends, even if it is killed.
    """

    def __init__(self, configs: Sequence[RankConfig]) -> None:
        self._timeout_s, self._world_size = configs[0].timeout_s, configs[0].world_size
        self._workers = [_start_worker(config) for config in configs]
        self._pending: list[TPCommand] = []
        self._failure = ""
        self.close = weakref.finalize(self, _stop_workers, self._workers)
        """Stops all processes; a second call does nothing."""

    @property
    def pids(self) -> list[int | None]:
        return [each.process.pid for each in self._workers]

    def enqueue(self, command: TPCommand) -> None:
        """Queues a command, to be sent before the next `execute`."""
        self._pending.append(command)
        if len(self._pending) >= _MAX_PENDING:
            self.execute()

    def execute(self, *commands: TPCommand) -> None:
        """Returns when all processes have executed the commands."""
        with self.executing(*commands):
            pass

    @contextmanager
    def executing(self, *commands: TPCommand) -> Iterator[None]:
        """All processes execute the commands while this one runs the body."""
        self._check_alive()
        batch, self._pending = (*self._pending, *commands), []
        with self.synchronized():
            for each in self._workers:
                each.pipe.send(batch)
            yield

    @contextmanager
    def synchronized(self) -> Iterator[None]:
        """Runs the body, then waits until all processes acknowledge. Raises WorkerGroupError if one fails."""
        try:
            yield
        except Exception as problem:
            raise self._local_failure(problem) from problem
        self._await_workers(self._timeout_s)

    def wait_loaded(self) -> None:
        """Returns when all processes have read the checkpoint."""
        self._await_workers(_LOAD_TIMEOUT_S)

    def _await_workers(self, timeout_s: float) -> None:
        severity, reason = self._worst_status(timeout_s)
        if severity:
            raise self._abort(reason)

    def _check_alive(self) -> None:
        if self._failure:
            raise WorkerGroupError(self._failure)
        if not self.close.alive:
            raise WorkerGroupError("the processes that shared the model were told to stop")

    def _worst_status(self, timeout_s: float) -> tuple[int, str]:
        """The most severe status of all processes."""
        worst, deadline = (0, ""), monotonic() + timeout_s
        waiting: dict[Any, _WorkerProcess] = {each.pipe: each for each in self._workers}
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - monotonic()))
            if not ready:
                silent = ", ".join(each.display_name for each in waiting.values())
                return max(worst, (_TIMED_OUT, f"{silent} did not answer in {timeout_s:g} s"))
            worst = max(worst, *(waiting.pop(pipe).receive_status() for pipe in ready))
            if worst[0]:
                deadline = min(deadline, monotonic() + _FAILURE_GRACE_S)
        return worst

    def _local_failure(self, problem: Exception) -> WorkerGroupError:
        """The error for a failure in this process; names the worker that caused it, if one did."""
        severity, reason = self._worst_status(_FAILURE_GRACE_S)
        if severity >= _FAILED:
            return self._abort(reason)
        here = f"rank 0 (this process) failed: {type(problem).__name__}: {problem}"
        return self._abort(f"{reason}, and {here}" if reason else here)

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
    """Sending raises OSError if the receiver's buffer stays full for `timeout_s`."""
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
    """This process's shard of a checkpoint (or of its `span`), and the group that holds the others.

    Every process reads the whole checkpoint and keeps its shard, so memory must hold `world_size` copies for a moment.
    Raises ValueError for a model that cannot be sharded so, too few GPUs, or a second model in this process;
    WorkerGroupError if a process fails to load its shard.
    """
    check_loadable(path)
    _check_environment(path, world_size, accelerator)
    with TemporaryDirectory(prefix="tandem-") as folder:
        configs = [
            RankConfig(rank, world_size, path, dtype, accelerator, str(Path(folder) / "meeting"), span, timeout_s)
            for rank in range(world_size)
        ]
        workers = WorkerGroup(configs[1:])
        try:
            causal = load_unsharded(configs[0])
            workers.wait_loaded()
            with workers.synchronized():
                model = load_shard(causal, configs[0])
        except BaseException:
            workers.close()
            raise
    return model, workers


def _check_environment(path: str, world_size: int, accelerator: str) -> None:
    import torch
    from torch import distributed
    from transformers import AutoConfig

    check_divisible_heads(world_size, AutoConfig.from_pretrained(path).to_dict(), path)
    if distributed.is_initialized():
        raise ValueError(
            f"model.cloud.tensor_parallel is {world_size}, and this process shares a model already; close that first, "
            "or set model.cloud.tensor_parallel=1"
        )
    if not accelerator.startswith("cpu") and torch.cuda.device_count() < world_size:
        raise ValueError(
            f"model.cloud.tensor_parallel is {world_size}, and torch sees {torch.cuda.device_count()} GPUs here; each "
            "process needs its own"
        )
