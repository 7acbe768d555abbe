"""Own tokens, the target's clock: a model that runs here, timed as another architecture on another chip."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from serving.architecture import Architecture, Precision
from serving.latency import Latency, Load
from serving.messages import Blob, Drafted, Forward, Generate, Outcome, Result, Work
from serving.odds import odds_nbytes


class Engine(Protocol):
    """`serving.engine.engine.Engine`, without importing torch."""

    def execute(self, work: Generate | Forward) -> tuple[Outcome, tuple[Load, ...]]: ...

    def drop(self, session: str, first: int | None) -> None: ...


class Timed:
    """An executor: outcomes from `engine`, a model of `layers` layers; seconds and bytes of the timed `architecture`.

    Each of its layers stands for L_timed / L layers. `latency` gives the coefficients for a session,
    because a device may change its power mode between two of them.
    """

    def __init__(
        self,
        engine: Engine,
        layers: int,
        architecture: Architecture,
        precision: Precision,
        latency: Callable[[str], Latency],
    ) -> None:
        self._engine, self._layers, self._depth, self._latency = engine, layers, architecture.layers, latency
        self._hidden_nbytes = architecture.hidden_nbytes(1, precision)
        self._vocabulary = architecture.vocabulary

    def execute(self, work: Work) -> tuple[Outcome, float]:
        outcome, loads = self._engine.execute(work)
        latency = self._latency(work.session if isinstance(work, Generate) else work.rows[0].session)
        return self._resized(work, outcome), latency.in_all(loads, self._depth, self._layers)

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)

    def _resized(self, work: Work, outcome: Outcome) -> Outcome:
        """The outcome with the bytes that its tensors would have on the timed architecture."""
        if isinstance(outcome, Drafted):
            if not outcome.odds:
                return outcome
            sized = zip(outcome.odds, outcome.kept, strict=True)
            return replace(outcome, odds=tuple(Blob(b.id, odds_nbytes(kept, self._vocabulary)) for b, kept in sized))
        if not isinstance(work, Forward) or work.span.head:
            return outcome
        return tuple(self._resized_result(result, work, i) for i, result in enumerate(outcome))

    def _resized_result(self, result: Result, work: Forward, i: int) -> Result:
        if result.blob is None:
            return result
        rows = work.rows[i].n if work.out[i] == "all" else work.rows[i].check + 1
        return replace(result, blob=Blob(result.blob.id, int(rows * self._hidden_nbytes)))
