"""What runs a node's work: engines compute outcomes, executors also tell the seconds that a chip is busy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from serving.hardware.latency import ForwardLoad
from serving.messages import (
    DraftWork,
    Outcome,
    Work,
)


class TransientWorkError(RuntimeError):
    """Work failed for a reason outside this program: its node receives `WorkFailed`, and the run goes on."""


class FatalWorkError(RuntimeError):
    """Work failed and all later work would: the process ends, so that its peers lose its nodes."""


class CacheHoleError(RuntimeError):
    """Work begins after the end of its session's cache."""


class CacheFullError(RuntimeError):
    """More is to be cached than there is room for."""


class DraftInProgress(Protocol):
    """A draft that has begun on an engine, and is written together with others."""

    @property
    def done(self) -> bool: ...

    @property
    def loads(self) -> Sequence[ForwardLoad]:
        """Of the forwards that have run."""
        ...

    @property
    def next_load(self) -> ForwardLoad:
        """The least that the next forward of a draft that is not done can be: it may leave before the last layer."""
        ...

    def advance(self) -> None:
        """Runs the next forward of all drafts that have begun on the engine."""
        ...

    def finish(self) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        """Runs what is left. Called once."""
        ...


@runtime_checkable
class DraftPoolingEngine(Protocol):
    """An engine that writes several drafts at the same time."""

    def begin(self, work: DraftWork) -> DraftInProgress | None:
        """None for a draft that is to be executed at once."""
        ...


@dataclass(frozen=True)
class TimedDraft:
    """A draft that an engine has begun, and its time as far as it has run."""

    begun: DraftInProgress
    seconds_of: Callable[[Sequence[ForwardLoad]], float]
    timed: Callable[[Outcome], Outcome]
    """The outcome with the tensor sizes of the timed architecture."""

    @property
    def done(self) -> bool:
        return self.begun.done

    @property
    def least_s(self) -> float:
        """The seconds of the forwards that have run, and the least of the next one."""
        ahead = () if self.begun.done else (self.begun.next_load,)
        return self.seconds_of((*self.begun.loads, *ahead))

    def advance(self) -> None:
        """Runs the next forward of all drafts that have begun on the engine."""
        self.begun.advance()

    def finish(self) -> tuple[Outcome, float]:
        """Runs what is left; returns what `Executor.execute` does. Called once."""
        outcome, loads = self.begun.finish()
        return self.timed(outcome), self.seconds_of(loads)


@runtime_checkable
class DraftPoolingExecutor(Protocol):
    """An executor of virtual time that writes drafts together with others that begin before they can end."""

    def begin(self, work: DraftWork) -> TimedDraft | None:
        """None for a draft that is to be executed at once."""
        ...


class Executor(Protocol):
    def execute(self, work: Work) -> tuple[Outcome, float]:
        """Returns the outcome and the seconds that the chip is busy. Raises TransientWorkError, FatalWorkError."""
        ...

    def drop(self, session: str, first: int | None) -> None:
        """Frees a session's cache: of the span that starts at layer `first`, or the drafter's (None)."""
        ...

    def move(self, session: str, to: str) -> None:
        """The drafter's cache of `session` becomes that of `to`, which has none."""
        ...

    def copy(self, session: str, to: str, length: int) -> None:
        """The drafter's cache of `to`, which has none, becomes the first `length` tokens of that of `session`."""
        ...


class Engine(Protocol):
    """`serving.engines.torch.engine.TorchEngine`, without importing torch."""

    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]: ...

    def drop(self, session: str, first: int | None) -> None: ...

    def move(self, session: str, to: str) -> None: ...

    def copy(self, session: str, to: str, length: int) -> None: ...
