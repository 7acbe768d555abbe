"""Runs work on a local model and times it as another architecture on another chip."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from serving.hardware.architecture import Architecture
from serving.hardware.executor import DraftPoolingEngine, DraftPoolingExecutor, Engine, Executor, TimedDraft
from serving.hardware.latency import ForwardLoad, LatencyModel, LayerScale
from serving.hardware.payload_size import HiddenDtype, draft_probs_nbytes, hidden_nbytes
from serving.messages import (
    MEDUSA_TREE,
    DraftBatchOutcome,
    DraftOutcome,
    DraftWork,
    ForwardWork,
    Outcome,
    SliceOutcome,
    TensorRef,
    Work,
)


@dataclass(frozen=True)
class ModelSplit:
    """A placement's split of a model."""

    scale: LayerScale
    hidden_dtype: HiddenDtype
    """Type in which hidden states leave a span."""
    draft_heads_ratio: float = 0.0
    """Weights of the draft heads as a multiple of the LM head's."""


class TimedExecutor:
    """Outcomes come from `engine`, a model of `layers` layers; seconds and bytes are those of the timed `architecture`.

    Args:
        latency: coefficients for a session; a device may change its power mode between sessions.
        split: None: each layer stands for timed layers / `layers`.
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
        self._begin = engine.begin if isinstance(engine, DraftPoolingEngine) else None
        self._split, self._hidden_size, self._vocab_size = split, architecture.hidden_size, architecture.vocab_size

    def execute(self, work: Work) -> tuple[Outcome, float]:
        outcome, loads = self._engine.execute(work)
        if self._split and isinstance(work, ForwardWork):
            return self._with_timed_nbytes(work, outcome), self._split_s(work, loads, self._split)
        return self._with_timed_nbytes(work, outcome), self._seconds(work, loads)

    def begin(self, work: DraftWork) -> TimedDraft | None:
        begun = self._begin(work) if self._begin else None
        if begun is None:
            return None
        return TimedDraft(begun, partial(self._seconds, work), partial(self._with_timed_nbytes, work))

    def _seconds(self, work: Work, loads: Sequence[ForwardLoad]) -> float:
        """Seconds of work that is not split."""
        latency = self._latency(work.slices[0].session if isinstance(work, ForwardWork) else work.session)
        return latency.total_seconds(loads, self._timed_layers, self._layers)

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)

    def move(self, session: str, to: str) -> None:
        self._engine.move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:
        self._engine.copy(session, to, length)

    def _split_s(self, work: ForwardWork, loads: tuple[ForwardLoad, ...], split: ModelSplit) -> float:
        """Seconds of a hop of a split model: the timed layers of its span, and its draft heads."""
        (load,) = loads
        scaled = [load.with_layers(split.scale.layers_for(work.span))]
        if (
            MEDUSA_TREE in work.requested_outputs
            and work.span.lm_head
            and (num_verdicts := sum(bool(seq.rule) for seq in work.slices))
        ):
            ratio = split.draft_heads_ratio
            scaled.append(ForwardLoad(0, 0, 0, 0, num_verdicts * ratio, num_forwards=ratio, num_continued=ratio))
        return self._latency(work.slices[0].session).total_seconds(scaled, 1, 1)

    def _with_timed_nbytes(self, work: Work, outcome: Outcome) -> Outcome:
        """Returns the outcome with the tensor sizes of the timed architecture."""
        if isinstance(outcome, DraftOutcome):
            return self._draft_with_timed_nbytes(outcome)
        if isinstance(outcome, DraftBatchOutcome):
            return DraftBatchOutcome(tuple(self._draft_with_timed_nbytes(each) for each in outcome.outcomes))
        if not isinstance(work, ForwardWork) or work.span.lm_head:
            return outcome
        return tuple(self._result_with_timed_nbytes(result, work, i) for i, result in enumerate(outcome))

    def _draft_with_timed_nbytes(self, outcome: DraftOutcome) -> DraftOutcome:
        if not outcome.draft_probs:
            return outcome
        sized = zip(outcome.draft_probs, outcome.probs_support, strict=True)
        return replace(
            outcome,
            draft_probs=tuple(TensorRef(ref.id, draft_probs_nbytes(n, self._vocab_size)) for ref, n in sized),
        )

    def _result_with_timed_nbytes(self, result: SliceOutcome, work: ForwardWork, i: int) -> SliceOutcome:
        if result.hidden_states is None:
            return result
        seq = work.slices[i]
        num_tokens = seq.num_tokens if work.hidden_exports[i] == "all" else seq.num_drafts + 1
        dtype: HiddenDtype = self._split.hidden_dtype if self._split else "fp16"
        nbytes = hidden_nbytes(num_tokens, self._hidden_size, dtype)
        # not by `replace`: it looks every field up, a twelfth of the time of a tiered simulation
        return SliceOutcome(result.verdict, TensorRef(result.hidden_states.id, nbytes))


class DeviceExecutor:
    """A device's executor: draft work runs on the drafter, forward work on the device's part of the target."""

    def __init__(self, drafter: Executor, target: Executor) -> None:
        self._drafter, self._target = drafter, target
        self._begin = drafter.begin if isinstance(drafter, DraftPoolingExecutor) else None

    def execute(self, work: Work) -> tuple[Outcome, float]:
        return (self._target if isinstance(work, ForwardWork) else self._drafter).execute(work)

    def begin(self, work: DraftWork) -> TimedDraft | None:
        return self._begin(work) if self._begin else None

    def drop(self, session: str, first: int | None) -> None:
        (self._drafter if first is None else self._target).drop(session, first)

    def move(self, session: str, to: str) -> None:
        self._drafter.move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:
        self._drafter.copy(session, to, length)
