"""TimedExecutor scales layers to the timed architecture and charges its bytes."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from serving.deployment.topology import Topology
from serving.hardware.latency import ForwardLoad, LinearLatency
from serving.hardware.timed_executor import TimedExecutor
from serving.messages import (
    MEDUSA_TREE,
    DraftBatch,
    DraftBatchOutcome,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    ForwardWork,
    SequenceSlice,
    SliceOutcome,
    Span,
    TensorRef,
    Verdict,
)
from serving.policy.slots.payload import HiddenStatePayload, TokenPayload
from serving.policy.slots.placement import CloudPlacement, UShapedPlacement
from tests.support.conf_files import architecture
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import setup

LARGE = architecture("llama2_13b")  # 40 layers, hidden 5120
ONE = LinearLatency(a_s=0.0, b_compute_s=0.0, b_read_s=0.0, c_s=1.0, layers=40, source="test", head_token_s=0.0)
"""A second for a forward of all forty layers."""


@dataclass
class Engine:
    outcome: Any
    loads: tuple[ForwardLoad, ...]
    dropped: list[Any] = field(default_factory=list)

    def execute(self, work: Any) -> Any:
        return self.outcome, self.loads

    def drop(self, session: str, first: int | None) -> None:
        self.dropped.append((session, first))


def timed(outcome: Any, *loads: ForwardLoad, latency: LinearLatency = ONE) -> TimedExecutor:
    return TimedExecutor(Engine(outcome, loads), 8, LARGE, lambda _: latency)


def rows(n: int = 5, check: int = 4) -> SequenceSlice:
    return SequenceSlice("s", 0, n, tuple(range(n)), check, "greedy")


@pytest.mark.parametrize(("layers", "seconds"), [(8, 1.0), (4, 0.5), (2, 0.25), (3, 0.375), (0, 0.0)])
def test_layer_i_stands_for_its_share_of_the_timed_layers(layers: int, seconds: float) -> None:
    _, took = timed(DraftOutcome((), {}, (), False, 0), ForwardLoad(layers, 1, 1, 0)).execute(
        DraftWork("s", 0, (1,), DraftStopRule(0))
    )
    assert took == pytest.approx(seconds)


def test_each_forward_of_a_draft_takes_its_time() -> None:
    step = ForwardLoad(8, 1, 1, 0)
    _, took = timed(DraftOutcome((1, 2, 3), {}, (), False, 2), step, step, step).execute(
        DraftWork("s", 0, (1,), DraftStopRule(3))
    )
    assert took == pytest.approx(3.0)


def test_the_session_decides_the_coefficients() -> None:
    asked: list[str] = []
    drafted = DraftOutcome((), {}, (), False, 0)
    engine = Engine(drafted, (ForwardLoad(8, 1, 1, 0),))
    executor = TimedExecutor(engine, 8, LARGE, lambda session: asked.append(session) or ONE)  # type: ignore[func-returns-value]
    executor.execute(DraftWork("g", 0, (1,), DraftStopRule(0)))
    engine.outcome = (SliceOutcome(Verdict(0, 1), None),)
    executor.execute(ForwardWork(Span(0, 8, True, True), (rows(),), ("last",)))
    engine.outcome = DraftBatchOutcome((drafted, drafted))
    works = tuple(DraftWork(name, 0, (1,), DraftStopRule(0)) for name in ("first", "second"))
    executor.execute(DraftBatch(works))
    assert asked == ["g", "s", "first"]


def test_the_drafts_of_a_batch_have_the_bytes_of_the_timed_vocabulary() -> None:
    one = DraftOutcome((1,), {}, ((1,),), False, 1, (TensorRef("x", 3),), (1,))
    works = tuple(DraftWork(name, 0, (1,), DraftStopRule(1)) for name in "ab")
    outcome, _ = timed(DraftBatchOutcome((one, one))).execute(DraftBatch(works))
    assert outcome == DraftBatchOutcome((replace(one, draft_probs=(TensorRef("x", 4),)),) * 2)


@pytest.mark.parametrize(
    ("kept", "nbytes"), [(0, 2 * 32000), (1, 4), (50, 4 * 50), (15_999, 4 * 15_999), (20_000, 2 * 32000)]
)
def test_distributions_have_the_bytes_of_the_timed_vocabulary(kept: int, nbytes: int) -> None:
    small = DraftOutcome((1, 2), {}, ((1,), (2,)), False, 1, (TensorRef("x", 3), TensorRef("y", 3)), (kept, 0))
    outcome, _ = timed(small).execute(DraftWork("s", 0, (1,), DraftStopRule(2)))
    assert isinstance(outcome, DraftOutcome)
    assert outcome.draft_probs == (TensorRef("x", nbytes), TensorRef("y", 2 * 32000))


def test_token_ids_of_a_large_vocabulary_take_four_bytes() -> None:
    small = DraftOutcome((1,), {}, ((1,),), False, 1, (TensorRef("x", 3),), (50,))
    engine = Engine(small, ())
    outcome, _ = TimedExecutor(engine, 8, replace(LARGE, vocab_size=128_256), lambda _: ONE).execute(
        DraftWork("s", 0, (1,), DraftStopRule(1))
    )
    assert isinstance(outcome, DraftOutcome)
    assert outcome.draft_probs == (TensorRef("x", 6 * 50),)


@pytest.mark.parametrize(("out", "counted"), [("all", 5), ("last", 5)])
def test_hidden_states_have_the_timed_width(out: str, counted: int) -> None:
    work = ForwardWork(Span(0, 4, embedding=True), (rows(),), (out,))
    outcome, _ = timed((SliceOutcome(None, TensorRef("h", 5 * 256 * 4)),)).execute(work)
    assert outcome == (SliceOutcome(None, TensorRef("h", counted * 5120 * 2)),)


def test_an_export_of_last_counts_the_last_and_the_draft_tokens() -> None:
    work = ForwardWork(Span(0, 4, embedding=True), (rows(n=12, check=4), rows(n=7, check=0)), ("last", "last"))
    outcome, _ = timed((SliceOutcome(None, TensorRef("a", 1)), SliceOutcome(None, TensorRef("b", 1)))).execute(work)
    assert [r.hidden_states.nbytes for r in outcome] == [5 * 10240, 1 * 10240]  # type: ignore[union-attr]


def test_a_verdict_keeps_its_bytes() -> None:
    found = (SliceOutcome(Verdict(2, 7), None),)
    outcome, _ = timed(found).execute(ForwardWork(Span(0, 8, True, True), (rows(),), ("last",)))
    assert outcome is found


def test_drops_reach_the_engine() -> None:
    executor = timed(None)
    executor.drop("s", 0)
    assert executor._engine.dropped == [("s", 0)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("placement", "payload"), [(CloudPlacement(), TokenPayload()), (UShapedPlacement(), HiddenStatePayload())]
)
def test_draft_heads_take_their_time_with_any_placement(placement: Any, payload: Any) -> None:
    """Four heads, each an LM head and a square of the hidden width, for each request that asks for a verdict."""
    topology = Topology(setup("u_medusa", override={"placement": placement, "payload": payload}), LAYERS)
    timing = topology.setup.pair.cloud.timed_architecture
    only_heads = LinearLatency(a_s=0.0, b_compute_s=0.0, b_read_s=0.0, c_s=0.0, layers=40, source="test", head_c_s=1.0)
    span = topology.hops[-1].span
    load = ForwardLoad(span.end_layer - span.start_layer, 5, 25, 0, 5)
    executor = TimedExecutor(
        Engine((SliceOutcome(Verdict(0, 1), None),), (load,)), LAYERS, timing, lambda _: only_heads, topology.split
    )
    work = ForwardWork(span, (rows(),), ("last",))
    _, plain_s = executor.execute(work)
    _, heads_s = executor.execute(replace(work, requested_outputs=(MEDUSA_TREE,)))
    assert plain_s == pytest.approx(1.0)
    assert heads_s - plain_s == pytest.approx(4 * (1 + timing.hidden_size / timing.vocab_size))
