"""What every runtime is given and gives back, whatever makes its time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from serving.drivers.observer import Observer
from serving.messages import Call, Work
from serving.progress import Progress
from serving.recorder import Record
from serving.setup import Setup
from serving.timed import Engine
from serving.workload.prompt import Prompt
from serving.workload.slo import SloClass

if TYPE_CHECKING:
    from serving.engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class Query:
    """One request of the workload, as tokens; `at_s` is None in a closed loop, where it follows the device's last
    answer.
    """

    call: Call
    prompt: Prompt
    device: int
    at_s: float | None
    think_s: float
    slo: SloClass | None


class Elsewhere:
    """A model that is not held here: nothing can be run on it."""

    def execute(self, work: Work) -> NoReturn:
        raise RuntimeError(f"this process does not hold the model that {type(work).__name__} needs")

    def drop(self, session: str, first: int | None) -> None:
        """There is nothing to free."""


NOWHERE = Elsewhere()


@dataclass(frozen=True)
class Models:
    """The two models of a pair, opened, with their depths."""

    device: Engine
    device_layers: int
    cloud: Engine
    cloud_layers: int
    tokenizer: "Tokenizer"
    here: Engine = NOWHERE
    """What runs the part of the large model that a placement puts on devices."""
    notes: Callable[[], tuple[str, ...]] = tuple
    """What a reader of the figures must know, asked when all is served."""
    another: Callable[[], Engine] | None = None
    """Runs the large model for a further node: the same weights, with caches of its own; None: all nodes share one."""
    close: Callable[[], object] = tuple
    """Ends the processes that a model shares its weights with, if it does."""


@dataclass(frozen=True)
class Served:
    """What was asked, and what became of it by session."""

    queries: Sequence[Query]
    records: Mapping[str, Record]
    tokenizer: "Tokenizer"
    layers: int
    """Of the large model where it ran."""
    is_text: bool = True
    """Do the tokens stand for words, so that answers can be judged?"""
    timeout_s: float | None = None
    """How long devices waited for an answer before they asked again; None: for ever."""
    here: bool = False
    """Did work take as long as it takes on this machine, whose power nobody measures, and not as on named chips?"""
    notes: tuple[str, ...] = ()
    """What a reader of the figures must know."""
    overhead: Mapping[str, float] = field(default_factory=dict)
    """What deciding cost here, as `serving.overhead` counts it; empty where that was not timed."""


class Runtime(Protocol):
    @property
    def described(self) -> str:
        """Where tokens and time come from, for the report."""
        ...

    @property
    def detail(self) -> bool:
        """Is everything kept that happened to a request, or only sums?"""
        ...

    def check(self, setup: Setup) -> None:
        """Raises ValueError for a setup that it does not play; before any work."""
        ...

    def serve(
        self, setup: Setup, accelerator: str, progress: Progress, observers: Sequence[Observer] = ()
    ) -> Served: ...
