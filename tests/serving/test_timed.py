"""Own tokens, the target's clock: layers are scaled, bytes are the timed architecture's."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from catalogue import architecture
from fake_setup import setup
from fake_world import LAYERS

from serving.deployment.topology import Cast
from serving.hardware.latency import Latency, Load
from serving.hardware.timed_executor import Timed
from serving.messages import HEADS, Blob, Drafted, Forward, Generate, Result, Rows, Span, Stop, Verdict
from serving.policy.slots.payload import Hidden, Tokens
from serving.policy.slots.placement import Cloud, UShape

LARGE = architecture("llama2_13b")  # 40 layers, hidden 5120
ONE = Latency(a_s=0.0, b_compute_s=0.0, b_read_s=0.0, c_s=1.0, layers=40, source="test", head_row_s=0.0)
"""A second for a forward of all forty layers."""


@dataclass
class Engine:
    outcome: Any
    loads: tuple[Load, ...]
    dropped: list[Any] = field(default_factory=list)

    def execute(self, work: Any) -> Any:
        return self.outcome, self.loads

    def drop(self, session: str, first: int | None) -> None:
        self.dropped.append((session, first))


def timed(outcome: Any, *loads: Load, latency: Latency = ONE) -> Timed:
    return Timed(Engine(outcome, loads), 8, LARGE, lambda _: latency)


def rows(n: int = 5, check: int = 4) -> Rows:
    return Rows("s", 0, n, tuple(range(n)), check, "greedy")


@pytest.mark.parametrize(("layers", "seconds"), [(8, 1.0), (4, 0.5), (2, 0.25), (3, 0.375), (0, 0.0)])
def test_layer_i_stands_for_its_share_of_the_timed_layers(layers: int, seconds: float) -> None:
    _, took = timed(Drafted((), {}, (), False, 0), Load(layers, 1, 1, 0)).execute(Generate("s", 0, (1,), Stop(0)))
    assert took == pytest.approx(seconds)


def test_each_forward_of_a_draft_takes_its_time() -> None:
    step = Load(8, 1, 1, 0)
    _, took = timed(Drafted((1, 2, 3), {}, (), False, 2), step, step, step).execute(Generate("s", 0, (1,), Stop(3)))
    assert took == pytest.approx(3.0)


def test_the_session_decides_the_coefficients() -> None:
    asked: list[str] = []
    engine = Engine(Drafted((), {}, (), False, 0), (Load(8, 1, 1, 0),))
    executor = Timed(engine, 8, LARGE, lambda session: asked.append(session) or ONE)  # type: ignore[func-returns-value]
    executor.execute(Generate("g", 0, (1,), Stop(0)))
    engine.outcome = (Result(Verdict(0, 1), None),)
    executor.execute(Forward(Span(0, 8, True, True), (rows(),), ("last",)))
    assert asked == ["g", "s"]


@pytest.mark.parametrize(
    ("kept", "nbytes"), [(0, 2 * 32000), (1, 4), (50, 4 * 50), (15_999, 4 * 15_999), (20_000, 2 * 32000)]
)
def test_distributions_weigh_what_they_name_of_the_timed_vocabulary(kept: int, nbytes: int) -> None:
    small = Drafted((1, 2), {}, ((1,), (2,)), False, 1, (Blob("x", 3), Blob("y", 3)), (kept, 0))
    outcome, _ = timed(small).execute(Generate("s", 0, (1,), Stop(2)))
    assert isinstance(outcome, Drafted)
    assert outcome.odds == (Blob("x", nbytes), Blob("y", 2 * 32000))


def test_a_token_of_a_large_vocabulary_is_named_in_four_bytes() -> None:
    small = Drafted((1,), {}, ((1,),), False, 1, (Blob("x", 3),), (50,))
    engine = Engine(small, ())
    outcome, _ = Timed(engine, 8, replace(LARGE, vocabulary=128_256), lambda _: ONE).execute(
        Generate("s", 0, (1,), Stop(1))
    )
    assert isinstance(outcome, Drafted)
    assert outcome.odds == (Blob("x", 6 * 50),)


@pytest.mark.parametrize(("out", "counted"), [("all", 5), ("last", 5)])
def test_hidden_states_have_the_timed_width(out: str, counted: int) -> None:
    work = Forward(Span(0, 4, embed=True), (rows(),), (out,))
    outcome, _ = timed((Result(None, Blob("h", 5 * 256 * 4)),)).execute(work)
    assert outcome == (Result(None, Blob("h", counted * 5120 * 2)),)


def test_only_the_last_and_the_checked_rows_are_exported_where_that_is_asked() -> None:
    work = Forward(Span(0, 4, embed=True), (rows(n=12, check=4), rows(n=7, check=0)), ("last", "last"))
    outcome, _ = timed((Result(None, Blob("a", 1)), Result(None, Blob("b", 1)))).execute(work)
    assert [r.blob.nbytes for r in outcome] == [5 * 10240, 1 * 10240]  # type: ignore[union-attr]


def test_a_verdict_has_no_bytes_to_scale() -> None:
    found = (Result(Verdict(2, 7), None),)
    outcome, _ = timed(found).execute(Forward(Span(0, 8, True, True), (rows(),), ("last",)))
    assert outcome is found


def test_drops_reach_the_engine() -> None:
    executor = timed(None)
    executor.drop("s", 0)
    assert executor._engine.dropped == [("s", 0)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("placement", "exchange"), [(Cloud(), Tokens()), (UShape(), Hidden())])
def test_heads_that_draft_take_their_time_wherever_the_target_ends(placement: Any, exchange: Any) -> None:
    """Four heads, each an LM head and a square of the hidden width, for each request that asks for a verdict."""
    cast = Cast(setup("u_medusa", override={"placement": placement, "exchange": exchange}), LAYERS)
    timing = cast.setup.pair.cloud.timing
    only_heads = Latency(a_s=0.0, b_compute_s=0.0, b_read_s=0.0, c_s=0.0, layers=40, source="test", head_c_s=1.0)
    span = cast.hops[-1].span
    load = Load(span.last - span.first, 5, 25, 0, 5)
    executor = Timed(Engine((Result(Verdict(0, 1), None),), (load,)), LAYERS, timing, lambda _: only_heads, cast.split)
    work = Forward(span, (rows(),), ("last",))
    _, plain_s = executor.execute(work)
    _, heads_s = executor.execute(replace(work, probes=(HEADS,)))
    assert plain_s == pytest.approx(1.0)
    assert heads_s - plain_s == pytest.approx(4 * (1 + timing.hidden / timing.vocabulary))
