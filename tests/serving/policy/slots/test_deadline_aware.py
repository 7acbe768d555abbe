"""The scheduler by deadline, where it differs from WISP's Algorithm 1."""

from dataclasses import replace

import pytest

from serving.messages import INF
from serving.policy.slots.deadline_aware import DeadlineAware
from tests.serving.policy.slots.slo_requests import item, picked

scheduler = DeadlineAware(max_num_seqs=64, guard_s=0.020, max_wait_s=1.0, max_overhead_share=1.0)


def test_requests_that_are_not_critical_are_ordered_by_deadline() -> None:
    waiting = [item("later", 9.0, value=9.0), item("sooner", 5.0, value=1.0), item("unpromised", INF, value=99.0)]
    assert picked(DeadlineAware(), *waiting) == ["sooner", "later", "unpromised"]


def test_under_overload_no_request_is_saved_by_a_batch_of_its_own() -> None:
    """Alone `brink` would be in time, in a batch half of which is the constant; with all the others it is late. Where
    a request is late already, it is not worth it.
    """
    brink, late, others = item("brink", 0.105), item("late", 0.0), [item(name, 9.0) for name in "abcdef"]
    careful = replace(scheduler, max_overhead_share=0.2)
    assert picked(careful, brink, *others) == picked(scheduler, brink, *others) == ["brink"]
    assert picked(scheduler, brink, late, *others) == ["brink"]
    assert picked(careful, brink, late, *others) == [*"abcdef", "brink", "late"]
    assert picked(careful, brink, late) == ["brink", "late"]


def test_late_requests_do_not_overtake_those_that_can_be_in_time() -> None:
    """`dear` would end the batch after the deadline of `strict`; `late` is short enough, and waits nevertheless."""
    strict, dear, late = item("strict", 0.190), item("dear", 9.0, rows=60), item("late", 0.0)
    assert picked(scheduler, strict, late) == ["strict", "late"]
    assert picked(scheduler, strict, dear, late) == ["strict"]


def test_an_overhead_share_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policy.scheduler.max_overhead_share is 0.0"):
        DeadlineAware(max_overhead_share=0.0)


def test_requests_that_are_critical_are_ordered_by_deadline() -> None:
    """Each has less than the guard of 20 ms left beside the constant and its own rows."""
    later, sooner = item("later", 0.118, rows=5), item("sooner", 0.115, rows=5)
    assert picked(scheduler, later, sooner)[0] == "sooner"
