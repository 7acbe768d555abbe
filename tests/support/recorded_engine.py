"""An engine that keeps what a model computed, and answers from it where no model is."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from serving.hardware.executor import Engine
from serving.hardware.latency import ForwardLoad
from serving.messages import ForwardWork, Outcome, Work, draft_works

CacheState: TypeAlias = int
"""A hash of the work that a cache has seen since it was dropped."""
Outcomes: TypeAlias = dict[tuple[str, Work, tuple[CacheState, ...]], tuple[Outcome, tuple[ForwardLoad, ...]]]
"""(engine, work, states of the caches that it changes) -> its outcome and loads."""


class UnrecordedWorkError(LookupError):
    """Work that the recorded run did not start, or started with a cache in another state."""


@dataclass
class RecordedEngine:
    """Keeps in `outcomes` what `engine` computes; without an engine answers from them: only the work that was recorded,
    in the order in which each cache saw it. Raises UnrecordedWorkError for any other.
    """

    name: str
    outcomes: Outcomes
    engine: Engine | None
    tensor_store: Any = None
    """Where a transport finds the tensors that the engine's work refers to."""
    states: dict[tuple[str, int | None], CacheState] = field(default_factory=dict)

    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        caches = _caches(work)
        key = self.name, work, tuple(self.states.get(cache, 0) for cache in caches)
        if self.engine:
            self.outcomes[key] = self.engine.execute(work)
        elif key not in self.outcomes:
            same = any(key[:2] == other[:2] for other in self.outcomes)
            reason = "its cache has seen other work" if same else "no such work was started"
            raise UnrecordedWorkError(f"{self.name}: {reason} in the recorded run: {work}")
        self.states |= {cache: hash((state, work)) for cache, state in zip(caches, key[2], strict=True)}
        return self.outcomes[key]

    def drop(self, session: str, first: int | None) -> None:
        self.states.pop((session, first), None)
        if self.engine:
            self.engine.drop(session, first)

    def move(self, session: str, to: str) -> None:
        self.states[to, None] = self.states.pop((session, None), 0)
        if self.engine:
            self.engine.move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:
        self.states[to, None] = hash((self.states.get((session, None), 0), length))
        if self.engine:
            self.engine.copy(session, to, length)


def _caches(work: Work) -> list[tuple[str, int | None]]:
    """(session, first layer; None: the drafter's) of the caches that the work changes."""
    if isinstance(work, ForwardWork):
        return [(seq.session, work.span.start_layer) for seq in work.slices]
    return [(each.session, None) for each in draft_works(work)]
