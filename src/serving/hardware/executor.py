"""Own tokens, the target's clock: a model that runs here, timed as another architecture on another chip."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from serving.hardware.architecture import Architecture
from serving.hardware.latency import ForwardLoad, LatencyModel, LayerScale
from serving.hardware.payload_size import HiddenDtype, draft_probs_nbytes, hidden_nbytes
from serving.messages import MEDUSA_TREE, DraftOutcome, DraftWork, ForwardWork, Outcome, SliceOutcome, TensorRef, Work


class TransientWorkError(RuntimeError):
    """Work that failed for a reason outside this program: its node hears `WorkFailed`, and everything else goes on."""


class FatalWorkError(RuntimeError):
    """Work failed, and all later work will: the process ends, so that others see its nodes lost."""


class Executor(Protocol):
    def execute(self, work: Work) -> tuple[Outcome, float]:
        """The outcome, and the seconds that the chip is busy with it. Raises OutageError, BrokenError."""
        ...

    def drop(self, session: str, first: int | None) -> None:
        """Frees a session's cache: of the span that begins at layer `first`, or the drafter's (None)."""
        ...


class Engine(Protocol):
    """`serving.engines.torch.engine.TorchEngine`, without importing torch."""

    def execute(self, work: DraftWork | ForwardWork) -> tuple[Outcome, tuple[ForwardLoad, ...]]: ...

    def drop(self, session: str, first: int | None) -> None: ...


@dataclass(frozen=True)
class ModelSplit:
    """How a placement divides a model."""

    scale: LayerScale
    hidden_dtype: HiddenDtype
    """In which hidden states leave a span."""
    draft_heads_ratio: float = 0.0
    """The weights of heads that draft, as a multiple of the model's own head's."""


class TimedExecutor:
    """An executor: outcomes from `engine`, a model of `layers` layers; seconds and bytes of the timed `architecture`.

    Each of its layers stands for L_timed / L layers, or where a placement splits it as `split` says. `latency` gives
    the coefficients for a session, because a device may change its power mode between two of them.
    """

    def __init__(
        self,
        engine: Engine,
        layers: int,
        architecture: Architecture,
        latency: Callable[[str], LatencyModel],
        split: ModelSplit | None = None,
    ) -> None:
        self._engine, self._layers, self._timed_layers, self._latency = engine, layers, architecture.layers, latency
        self._split, self._hidden_size, self._vocab_size = split, architecture.hidden_size, architecture.vocab_size

    def execute(self, work: Work) -> tuple[Outcome, float]:
        outcome, loads = self._engine.execute(work)
        if self._split and isinstance(work, ForwardWork):
            return self._with_timed_nbytes(work, outcome), self._split_s(work, loads, self._split)
        latency = self._latency(work.session if isinstance(work, DraftWork) else work.slices[0].session)
        return self._with_timed_nbytes(work, outcome), latency.total_seconds(loads, self._timed_layers, self._layers)

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)

    def _split_s(self, work: ForwardWork, loads: tuple[ForwardLoad, ...], split: ModelSplit) -> float:
        """A hop of a split model, by the layers that its span stands for, and the heads that draft beside its own."""
        (one,) = loads
        scaled = [one._replace(layers=split.scale.layers_for(work.span))]
        if (
            MEDUSA_TREE in work.requested_outputs
            and work.span.lm_head
            and (asked := sum(bool(rows.rule) for rows in work.slices))
        ):
            scaled.append(
                ForwardLoad(0, 0, 0, 0, asked * split.draft_heads_ratio, num_forwards=split.draft_heads_ratio)
            )
        return self._latency(work.slices[0].session).total_seconds(scaled, 1, 1)

    def _with_timed_nbytes(self, work: Work, outcome: Outcome) -> Outcome:
        """The outcome with the bytes that its tensors would have on the timed architecture."""
        if isinstance(outcome, DraftOutcome):
            if not outcome.draft_probs:
                return outcome
            sized = zip(outcome.draft_probs, outcome.probs_support, strict=True)
            return replace(
                outcome,
                draft_probs=tuple(TensorRef(b.id, draft_probs_nbytes(kept, self._vocab_size)) for b, kept in sized),
            )
        if not isinstance(work, ForwardWork) or work.span.lm_head:
            return outcome
        return tuple(self._result_with_timed_nbytes(result, work, i) for i, result in enumerate(outcome))

    def _result_with_timed_nbytes(self, result: SliceOutcome, work: ForwardWork, i: int) -> SliceOutcome:
        if result.hidden_states is None:
            return result
        rows = work.slices[i].num_tokens if work.hidden_exports[i] == "all" else work.slices[i].num_drafts + 1
        number: HiddenDtype = self._split.hidden_dtype if self._split else "fp16"
        return replace(
            result, hidden_states=TensorRef(result.hidden_states.id, hidden_nbytes(rows, self._hidden_size, number))
        )


class DeviceExecutor:
    """A device's chip: the drafter's work and the target's part of it are of two models."""

    def __init__(self, drafter: Executor, target: Executor) -> None:
        self._drafter, self._target = drafter, target

    def execute(self, work: Work) -> tuple[Outcome, float]:
        return (self._drafter if isinstance(work, DraftWork) else self._target).execute(work)

    def drop(self, session: str, first: int | None) -> None:
        (self._drafter if first is None else self._target).drop(session, first)
