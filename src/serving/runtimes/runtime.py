"""What every runtime is given and gives back, whatever makes its time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.drivers.simulator import Observer
from serving.metrics.recorder import SessionRecord
from serving.progress import Progress

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer


@dataclass(frozen=True)
class RunResult:
    """What was asked, and what became of it by session."""

    queries: Sequence[Query]
    records: Mapping[str, SessionRecord]
    tokenizer: "Tokenizer"
    target_layers: int
    """Of the large model where it ran."""
    is_text: bool = True
    """Do the tokens stand for words, so that answers can be judged?"""
    timeout_s: float | None = None
    """How long devices waited for an answer before they asked again; None: for ever."""
    local_timing: bool = False
    """Did work take as long as it takes on this machine, whose power nobody measures, and not as on named chips?"""
    notes: tuple[str, ...] = ()
    """What a reader of the figures must know."""
    overhead: Mapping[str, float] = field(default_factory=dict)
    """What deciding cost here, as `serving.metrics.overhead` counts it; empty where that was not timed."""


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
    ) -> RunResult: ...
