"""Stall times of a device, by hand and against a time grid."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.metrics.utilisation import StallTimes, stall_times

Line = list[tuple[str, float, float, int]]

ROUND: Line = [
    ("draft", 0, 4, 4),
    ("uplink", 4, 6, 120),
    ("queue", 6, 7, 8),
    ("verify", 7, 10, 8),
    ("downlink", 10, 11, 20),
    ("draft", 11, 13, 2),
]
"""A vanilla round: the device waits from 4 to 11."""
OWN, CLOUD, LINK = {"draft"}, {"queue", "prefill", "verify", "decode"}, {"uplink", "downlink"}
LANES = sorted(OWN | CLOUD | LINK)


def test_an_empty_timeline_has_no_stalls() -> None:
    assert stall_times([]) == (0, 0, 0)


def test_a_device_alone_never_stalls() -> None:
    assert stall_times([("draft", 0, 4, 4), ("draft", 5, 9, 4)]) == (0, 0, 0)


def test_one_round_waits_for_both_ways_of_the_link_and_for_queue_and_verification() -> None:
    assert stall_times(ROUND) == StallTimes(link_s=2 + 1, cloud_s=1 + 3, cloud_residence_s=4)


def test_stall_times_of_rounds_add_up() -> None:
    later: Line = [(lane, begin + 20, end + 20, n) for lane, begin, end, n in ROUND]
    assert stall_times([*ROUND, *later]) == (6, 8, 8)


def test_the_order_of_timeline_entries_does_not_change_stalls() -> None:
    assert stall_times(ROUND[::-1]) == stall_times(ROUND)


def test_lookahead_hides_stalls_but_not_the_cloud_residence() -> None:
    ahead: Line = [("draft", 4, 5, 1), ("draft", 5, 8, 2)]
    assert stall_times([*ROUND, *ahead]) == StallTimes(link_s=1, cloud_s=2, cloud_residence_s=4)
    assert stall_times([*ROUND, ("draft", 4, 12, 3)]) == (0, 0, 4)


def test_drafting_on_in_the_middle_of_a_wait_leaves_both_its_ends() -> None:
    assert stall_times([("verify", 0, 10, 8), ("draft", 2, 3, 1), ("draft", 5, 6, 1)]) == (0, 8, 10)


def test_overlapping_link_and_cloud_time_counts_as_cloud() -> None:
    parts: Line = [("uplink", 0, 4, 64), ("uplink", 4, 8, 64), ("prefill", 4, 6, 32), ("prefill", 8, 10, 32)]
    assert stall_times(parts) == StallTimes(link_s=4 + 2, cloud_s=2 + 2, cloud_residence_s=4)


def test_work_at_the_same_time_counts_once() -> None:
    assert stall_times([("prefill", 0, 5, 32), ("verify", 3, 7, 8), ("uplink", 8, 9, 10), ("uplink", 8, 10, 10)]) == (
        2,
        7,
        7,
    )


@pytest.mark.parametrize("lane", ["queue", "prefill", "verify", "decode"])
def test_every_kind_of_work_in_the_cloud_is_waited_for(lane: str) -> None:
    assert stall_times([(lane, 1, 3, 1)]) == (0, 2, 2)


def test_messages_after_the_end_cause_no_stall() -> None:
    release: Line = [("uplink", 13, 16, 16)]
    assert stall_times([*ROUND, *release], ended_s=13) == stall_times(ROUND)


def test_a_stall_cut_by_the_end_counts_up_to_it() -> None:
    assert stall_times(ROUND, ended_s=8.5) == StallTimes(link_s=2, cloud_s=2.5, cloud_residence_s=2.5)


pieces = st.tuples(st.sampled_from(LANES), st.integers(0, 30), st.integers(0, 8)).map(
    lambda piece: (piece[0], float(piece[1]), float(piece[1] + piece[2]), 1)
)


def by_the_grid(line: Line, ended_s: float) -> tuple[int, int, int]:
    """The stall times, counted second by second."""
    link = cloud = resident = 0
    for second in range(40):
        busy = {lane for lane, begin, end, _ in line if begin <= second < min(end, ended_s)}
        resident += bool(busy & CLOUD)
        cloud += bool(busy & CLOUD) and not busy & OWN
        link += bool(busy & LINK) and not busy & (OWN | CLOUD)
    return link, cloud, resident


@given(st.lists(pieces, max_size=20), st.one_of(st.integers(0, 40), st.just(math.inf)))
def test_stall_times_equal_a_count_on_a_time_grid(line: Line, ended_s: float) -> None:
    assert stall_times(line, ended_s) == by_the_grid(line, ended_s)
