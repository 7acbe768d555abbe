"""Own tokens, the target's clock: a model that runs here, timed as another architecture on another chip."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from serving.hardware.architecture import Architecture
from serving.hardware.executor import Executor
from serving.hardware.latency import Latency, Load
from serving.hardware.layer_scaling import Scale
from serving.hardware.payload_size import Number, hidden_nbytes, odds_nbytes
from serving.messages import HEADS, Blob, Drafted, Forward, Generate, Outcome, Result, Work


class Engine(Protocol):
    """`serving.engines.torch.engine.Engine`, without importing torch."""

    def execute(self, work: Generate | Forward) -> tuple[Outcome, tuple[Load, ...]]: ...

    def drop(self, session: str, first: int | None) -> None: ...


@dataclass(frozen=True)
class Split:
    """How a placement divides a model."""

    scale: Scale
    number: Number
    """In which hidden states leave a span."""
    heads: float = 0.0
    """The weights of heads that draft, as a multiple of the model's own head's."""


class Timed:
    """An executor: outcomes from `engine`, a model of `layers` layers; seconds and bytes of the timed `architecture`.

    Each of its layers stands for L_timed / L layers, or where a placement splits it as `split` says. `latency` gives
    the coefficients for a session, because a device may change its power mode between two of them.
    """

    def __init__(
        self,
        engine: Engine,
        layers: int,
        architecture: Architecture,
        latency: Callable[[str], Latency],
        split: Split | None = None,
    ) -> None:
        self._engine, self._layers, self._depth, self._latency = engine, layers, architecture.layers, latency
        self._split, self._width, self._vocabulary = split, architecture.hidden, architecture.vocabulary

    def execute(self, work: Work) -> tuple[Outcome, float]:
        outcome, loads = self._engine.execute(work)
        if self._split and isinstance(work, Forward):
            return self._resized(work, outcome), self._split_s(work, loads, self._split)
        latency = self._latency(work.session if isinstance(work, Generate) else work.rows[0].session)
        return self._resized(work, outcome), latency.in_all(loads, self._depth, self._layers)

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)

    def _split_s(self, work: Forward, loads: tuple[Load, ...], split: Split) -> float:
        """A hop of a split model, by the layers that its span stands for, and the heads that draft beside its own."""
        (one,) = loads
        scaled = [one._replace(layers=split.scale.of(work.span))]
        if HEADS in work.probes and work.span.head and (asked := sum(bool(rows.rule) for rows in work.rows)):
            scaled.append(Load(0, 0, 0, 0, asked * split.heads, forwards=split.heads))
        return self._latency(work.rows[0].session).in_all(scaled, 1, 1)

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
        number: Number = self._split.number if self._split else "fp16"
        return replace(result, blob=Blob(result.blob.id, hidden_nbytes(rows, self._width, number)))


class Halves:
    """A device's chip: the drafter's work and the target's part of it are of two models."""

    def __init__(self, drafter: Executor, target: Executor) -> None:
        self._drafter, self._target = drafter, target

    def execute(self, work: Work) -> tuple[Outcome, float]:
        return (self._drafter if isinstance(work, Generate) else self._target).execute(work)

    def drop(self, session: str, first: int | None) -> None:
        (self._drafter if first is None else self._target).drop(session, first)
