"""The interface of a runtime, and the result of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from serving.deployment.setup import Setup
from serving.progress import Progress

if TYPE_CHECKING:
    from serving.deployment.queries import Query
    from serving.drivers.observer import Observer
    from serving.engines.tokenizer import Tokenizer
    from serving.metrics.recorder import SessionRecord


@dataclass(frozen=True)
class RunResult:
    """The queries of a run and their records by session."""

    queries: "Sequence[Query]"
    records: "Mapping[str, SessionRecord]"
    tokenizer: "Tokenizer"
    target_layers: int
    """Layers of the large model where it ran."""
    is_text: bool = True
    """True if tokens are text, so that the quality of answers can be measured."""
    timeout_s: float | None = None
    """Time without an answer after which devices sent a request again; None: never."""
    local_timing: bool = False
    """True if work took as long as on this machine, whose power is unknown, and not as on the named chips."""
    links_timed: bool = True
    """True if messages took the time of the named links, and the records say when they arrived."""
    paced: bool = False
    """True if work was stretched on the wall clock to its time on the named chips: the run replays their clocks."""
    notes: tuple[str, ...] = ()
    """Remarks for readers of the results."""
    overhead: Mapping[str, float] = field(default_factory=dict)
    """The time of decisions, see `serving.metrics.overhead`; empty if it was not measured."""


class Runtime(Protocol):
    @property
    def described(self) -> str:
        """The source of tokens and times, for the report."""
        ...

    @property
    def detail(self) -> bool:
        """True if time lines and draft chunks are kept, not only sums."""
        ...

    def check(self, setup: Setup) -> None:
        """Raises ValueError for a setup that it cannot run; before any work."""
        ...

    def serve(
        self, setup: Setup, accelerator: str, progress: Progress, observers: "Sequence[Observer]" = ()
    ) -> RunResult: ...
