"""WISP's Algorithm 1 by table: what a batch is made of, and that no request starves."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.kv_accounting import KVAccounting, MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import ZERO_ESTIMATOR, Estimator
from serving.hardware.latency import LayerScale, LinearLatency, batch_load
from serving.messages import INF, ForwardWork, Span
from serving.policy.slots.deadline_aware import DeadlineAware
from serving.policy.slots.scheduler import Scheduler
from serving.policy.slots.slo_aware import SloAware
from tests.serving.policy.slots.slo_requests import FREE, SPAN, TENTH, item, picked

scheduler = SloAware(max_num_seqs=64, guard_s=0.020, max_wait_s=1.0)
CONF = Path(__file__).parents[4] / "conf" / "policy"


def test_policy_wisp_schedules_by_the_papers_algorithm_1() -> None:
    """Not by deadline, as this project's own scheduler does, which has a policy of its own."""
    targets = {}
    for name in ("wisp.yaml", "wisp_deadline.yaml"):
        slots = yaml.safe_load((CONF / name).read_text())["defaults"]
        (choice,) = [each["scheduler"] for each in slots if "scheduler" in each]
        targets[name] = yaml.safe_load((CONF / "scheduler" / f"{choice}.yaml").read_text())["_target_"]
    assert targets == {
        "wisp.yaml": "serving.policy.slots.slo_aware.SloAware",
        "wisp_deadline.yaml": "serving.policy.slots.deadline_aware.DeadlineAware",
    }


def test_requests_join_a_batch_while_all_deadlines_are_kept() -> None:
    """50 + 5 x 50 ms is too late for a deadline of 290 ms, and 50 + 4 x 50 is not."""
    waiting = [item(name, 0.290) for name in "abcdef"]
    assert picked(scheduler, *waiting) == ["a", "b", "c", "d"]


def test_the_guard_time_is_in_the_latest_start_and_not_in_the_feasibility_test() -> None:
    """Line 5 of Algorithm 1 has no delta: four of these end 5 ms before the deadline, which is less than the guard."""
    waiting = [item(name, 0.255) for name in "abcdef"]
    assert picked(scheduler, *waiting) == ["a", "b", "c", "d"]
    assert picked(DeadlineAware(guard_s=0.020), *waiting) == ["a", "b", "c"]


def test_the_critical_go_first_by_deadline_and_the_others_by_value_a_second() -> None:
    near = [item("near", 0.110), item("nearer", 0.105)]
    assert picked(scheduler, *near, item("calm", 9.0)) == ["nearer"]  # with another one the first would be late
    others = item("dear", 9.0, value=1.0), item("cheap", 9.0, value=4.0), item("long", 9.0, rows=40, value=4.0)
    assert picked(scheduler, *others) == ["cheap", "dear", "long"]


def test_a_request_becomes_critical_a_guard_before_its_latest_start() -> None:
    """Alone it takes 100 ms: due at 130 ms it is calm at 0 ms, critical from 10 ms on (Eq. 17)."""
    rival = item("rival", 9.0, value=99.0)
    assert picked(scheduler, rival, item("due", 0.130), now=0.005)[0] == "rival"
    assert picked(scheduler, rival, item("due", 0.130), now=0.015)[0] == "due"


def test_late_requests_join_only_if_no_other_deadline_is_missed() -> None:
    late, strict, calm = item("late", 0.020), item("strict", 0.140), item("calm", 9.0)
    assert picked(scheduler, late, strict) == ["strict"]
    assert picked(scheduler, late, calm) == ["calm", "late"]
    assert picked(scheduler, late, item("also", 0.0)) == ["late", "also"]


def test_late_requests_do_not_overtake_those_that_can_be_in_time() -> None:
    """`dear` would end the batch after the deadline of `strict`; `late` is short enough, and waits nevertheless."""
    strict, dear, late = item("strict", 0.170, value=9.0), item("dear", 9.0, rows=60), item("late", 0.0)
    assert picked(scheduler, strict, late) == ["strict", "late"]
    assert picked(scheduler, strict, dear, late) == ["strict"]


def test_a_late_request_that_waited_max_wait_s_leads_the_batch() -> None:
    old, critical = item("old", -1.0, rows=40), item("critical", 0.110, arrived=1.0)
    assert picked(scheduler, old, critical, now=1.0) == ["old"]
    assert picked(replace(scheduler, max_wait_s=2.0), old, critical, now=1.0) == ["critical"]
    assert picked(scheduler, item("unpromised", INF), critical, now=1.0)[0] == "unpromised"


def test_a_request_in_time_waits_for_its_turn_however_long() -> None:
    """Algorithm 1 serves it when it becomes critical; this project's own scheduler lets it lead."""
    patient, rival = item("patient", 9.0, value=1.0), item("rival", 9.0, arrived=1.0, value=99.0)
    assert picked(scheduler, patient, rival, now=1.0)[0] == "rival"
    assert picked(DeadlineAware(), patient, item("rival", 1.0, arrived=1.0), now=1.0)[0] == "patient"


def test_a_batch_keeps_to_max_num_seqs_and_memory() -> None:
    waiting = [item(name, 9.0) for name in "abc"]
    assert picked(replace(scheduler, max_num_seqs=2), *waiting) == ["a", "b"]
    ledger = KVAccounting(48.0, keep_caches=True)
    many = [item(name, 9.0, rows=14) for name in "abcd"]
    assert picked(scheduler, *many, room=MemoryBudget(ledger, ())) == ["a", "b", "c"]
    huge = item("huge", 9.0, rows=400)
    assert picked(scheduler, huge, room=MemoryBudget(ledger, ())) == ["huge"]  # admission says what is wrong


BOTH: list[Scheduler] = [scheduler, DeadlineAware(guard_s=0.020)]


@pytest.mark.parametrize("chosen", BOTH, ids=repr)
@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(-1, 3), st.integers(1, 60), st.floats(0.5, 9)), min_size=1, max_size=40))
def test_requests_of_a_batch_that_can_meet_their_deadline_do(
    chosen: Scheduler, drawn: list[tuple[float, int, float]]
) -> None:
    """In a batch without a request that leads by waiting time, a late request would be late alone too."""
    waiting = [item(f"{i}", slack_s, rows, value=value) for i, (slack_s, rows, value) in enumerate(drawn)]
    batch = replace(chosen, max_overhead_share=1.0) if isinstance(chosen, DeadlineAware) else chosen
    found = batch.pick(waiting, 0.0, FREE, TENTH)
    assert isinstance(found, list)
    assert found
    ends_s = TENTH.constant_s(Span(0, 8, True, True)) + sum(TENTH.marginal_s(i) for i, _ in found)
    for member, _ in found:
        alone_s = TENTH.constant_s(Span(0, 8, True, True)) + TENTH.marginal_s(member)
        assert ends_s <= member.deadline_s + 1e-9 or alone_s > member.deadline_s - 1e-9


@pytest.mark.parametrize("chosen", BOTH, ids=repr)
def test_no_request_starves_under_continuous_load(chosen: Scheduler) -> None:
    """Two fresh requests of high value arrive for each batch; a late, a dear and an unpromised one wait among them."""
    names, dice = count(), Random(0)
    waiting: list[QueuedRequest] = [
        item("late", -1.0), item("dear", 2.0, rows=60, value=1.0), item("unpromised", INF, value=0.1)
    ]  # fmt: skip
    served: dict[str, float] = {}
    now = 0.0
    for _ in range(60):
        waiting += [item(f"n{next(names)}", 0.12 + dice.random() / 9, arrived=now, value=9.0) for _ in range(2)]
        batch = chosen.pick(waiting, now, FREE, TENTH)
        assert isinstance(batch, list)
        now += TENTH.constant_s(Span(0, 8, True, True)) + sum(TENTH.marginal_s(i) for i, _ in batch)
        for member, _ in batch:
            served[member.slice.session] = now
            waiting.remove(member)
    assert {"late", "dear", "unpromised"} <= set(served)
    assert max(served[name] for name in ("late", "dear", "unpromised")) < 5.0


def test_an_estimate_adds_the_shares_of_requests_and_the_batch() -> None:
    latency = LinearLatency(
        1e-3, 2e-6, 3e-6, 0.04, 8, "a test", head_token_s=1e-4, head_c_s=0.01, session_s=0.002, wake_s=0.005
    )
    estimator = Estimator(latency, LayerScale(8, 8))
    items = [item("a", 1.0, rows=5, cached=100), item("b", 1.0, rows=3, cached=7), item("c", 1.0, rows=50)]
    summed = estimator.constant_s(Span(0, 8, True, True)) + sum(estimator.marginal_s(i) for i in items)
    work = ForwardWork(SPAN, tuple(i.slice for i in items), ("last",) * 3)
    assert summed == pytest.approx(estimator.batch_s(work))
    spans = [(100, 5), (0, 50), (7, 3)]
    assert estimator.batch_s(work) == pytest.approx(latency.seconds(batch_load(8, spans, 5 + 3 + 5)))
    assert ZERO_ESTIMATOR.batch_s(work) == 0.0


def test_the_cost_of_a_partly_computed_request_is_recomputed() -> None:
    one = item("a", 1.0, rows=50)
    whole_s = TENTH.marginal_s(one)
    one.advance(40)
    assert TENTH.marginal_s(one) == pytest.approx(whole_s / 5)


@pytest.mark.parametrize("kind", [SloAware, DeadlineAware])
@pytest.mark.parametrize(("field", "value"), [("max_num_seqs", 0), ("guard_s", -0.1), ("max_wait_s", -1.0)])
def test_options_out_of_range_are_refused(kind: type, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"policy.scheduler.{field} is {value!r}"):
        kind(**{field: value})
