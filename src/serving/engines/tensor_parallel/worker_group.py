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

from serving.engines.tensor_parallel.commands import PATIENCE_S, Order, Seat, check_heads
from serving.engines.tensor_parallel.shard import leave, loaded, open_share
from serving.engines.tensor_parallel.worker import follow
from serving.engines.torch.model import Model, check_checkpoint
from serving.hardware.executor import BrokenError
from serving.messages import Span

_LOADING_S = 1800.0
"""How long reading a checkpoint may take."""
_LEAVING_S = 5.0
"""How long a process that was told to stop may take."""
_LOOK_S = 1.0
"""How long others are listened to when one has failed: who died says nothing, and those whom it left behind do."""
_PENDING = 256
"""So many orders wait for the next that is urgent."""
_SILENT, _FAILED, _DIED = 1, 2, 3


class TeamError(BrokenError):
    """A process that holds a share of a model failed: what the others' caches hold is not known any more."""


@dataclass(frozen=True)
class _Follower:
    rank: int
    process: BaseProcess
    line: Connection

    @property
    def named(self) -> str:
        return f"rank {self.rank} (process {self.process.pid})"

    def answer(self) -> tuple[int, str]:
        """How bad it is, and what: (0, "") when all is well. Waits until there is one."""
        try:
            said = self.line.recv()
        except (EOFError, OSError):
            self.process.join(_LOOK_S)
            return _DIED, f"{self.named} died (exit code {self.process.exitcode})"
        return (0, "") if said is None else (_FAILED, f"{self.named} failed: {said}")


class Team:
    """All processes that share a model but the one that leads, which is this one.

    They answer whatever they are told before they are told more. When one fails, dies or does not answer in time, all
    end; work raises a TeamError that says who it was, now and ever after. They end, too, when nobody refers to the
    team any more, and with this process, also where that is killed.
    """

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._patience_s, self._ways = seats[0].patience_s, seats[0].ways
        self._followers = [_start(seat) for seat in seats]
        self._pending: list[Order] = []
        self._problem = ""
        self.close = weakref.finalize(self, _end, self._followers)
        """Ends them all; again it does nothing."""

    @property
    def pids(self) -> list[int | None]:
        return [each.process.pid for each in self._followers]

    def later(self, order: Order) -> None:
        """To be done before the next that is urgent."""
        self._pending.append(order)
        if len(self._pending) >= _PENDING:
            self.do()

    def do(self, *orders: Order) -> None:
        """Returns when all have done it."""
        with self.doing(*orders):
            pass

    @contextmanager
    def doing(self, *orders: Order) -> Iterator[None]:
        """All do it while this process does its own share inside."""
        self._check()
        told, self._pending = (*self._pending, *orders), []
        with self.together():
            for each in self._followers:
                each.line.send(told)
            yield

    @contextmanager
    def together(self) -> Iterator[None]:
        """What all do by themselves, each its own share."""
        try:
            yield
        except Exception as problem:
            raise self._failed(problem) from problem
        self._hear(self._patience_s)

    def loaded(self) -> None:
        """Returns when all have read the checkpoint."""
        self._hear(_LOADING_S)

    def _hear(self, patience_s: float) -> None:
        weight, what = self._answers(patience_s)
        if weight:
            raise self._over(what)

    def _check(self) -> None:
        if self._problem:
            raise TeamError(self._problem)
        if not self.close.alive:
            raise TeamError("the processes that shared the model were told to stop")

    def _answers(self, patience_s: float) -> tuple[int, str]:
        """The worst of them."""
        worst, deadline = (0, ""), monotonic() + patience_s
        waiting: dict[Any, _Follower] = {each.line: each for each in self._followers}
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - monotonic()))
            if not ready:
                silent = ", ".join(each.named for each in waiting.values())
                return max(worst, (_SILENT, f"{silent} did not answer in {patience_s:g} s"))
            worst = max(worst, *(waiting.pop(line).answer() for line in ready))
            if worst[0]:
                deadline = min(deadline, monotonic() + _LOOK_S)
        return worst

    def _failed(self, problem: Exception) -> TeamError:
        """Work failed here: because of one that is not there any more, if there is one."""
        weight, what = self._answers(_LOOK_S)
        if weight >= _FAILED:
            return self._over(what)
        here = f"rank 0 (this process) failed: {type(problem).__name__}: {problem}"
        return self._over(f"{what}, and {here}" if what else here)

    def _over(self, what: str) -> TeamError:
        self._problem = f"a model is shared by {self._ways} processes, and {what}; start this node again"
        for each in self._followers:
            each.process.kill()
        return TeamError(self._problem)


def _start(seat: Seat) -> _Follower:
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    _impatient(here, seat.patience_s)
    process = context.Process(target=follow, args=(seat, there), name=f"rank-{seat.rank}", daemon=True)
    process.start()
    there.close()
    return _Follower(seat.rank, process, here)


def _impatient(line: Connection, patience_s: float) -> None:
    """Sending to one that has stopped reading raises an OSError when its buffer has been full for so long."""
    with socket.socket(fileno=dup(line.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(patience_s), 0))


def _end(followers: Sequence[_Follower]) -> None:
    for each in followers:
        with suppress(OSError):
            each.line.send(None)
    leave()
    for each in followers:
        each.process.join(_LEAVING_S)
        each.process.kill()
        each.process.join()
        each.line.close()


def open_shared(
    path: str,
    ways: int,
    *,
    dtype: str = "fp32",
    accelerator: str = "cpu",
    span: Span | None = None,
    patience_s: float = PATIENCE_S,
) -> tuple[Model, Team]:
    """This process's share of a checkpoint, and the team that holds the others; of a `span` that alone.

    Every process reads the whole checkpoint and keeps its share, so memory must hold `ways` copies for a moment.
    Raises ValueError for a model that cannot be parted so, too few GPUs, or a second one in this process; TeamError
    when a process does not come to its share.
    """
    check_checkpoint(path)
    _check_here(path, ways, accelerator)
    with TemporaryDirectory(prefix="tandem-") as folder:
        seats = [
            Seat(rank, ways, path, dtype, accelerator, str(Path(folder) / "meeting"), span, patience_s)
            for rank in range(ways)
        ]
        team = Team(seats[1:])
        try:
            causal = loaded(seats[0])
            team.loaded()
            with team.together():
                model = open_share(causal, seats[0])
        except BaseException:
            team.close()
            raise
    return model, team


def _check_here(path: str, ways: int, accelerator: str) -> None:
    import torch
    from torch import distributed
    from transformers import AutoConfig

    check_heads(ways, AutoConfig.from_pretrained(path).to_dict(), path)
    if distributed.is_initialized():
        raise ValueError(
            f"model.cloud.ways is {ways}, and this process shares a model already; close that first, or set ways=1"
        )
    if not accelerator.startswith("cpu") and torch.cuda.device_count() < ways:
        raise ValueError(
            f"model.cloud.ways is {ways}, and torch sees {torch.cuda.device_count()} GPUs here; each process needs one "
            "of its own"
        )
