"""State monitoring (HAT, section 3.2): Eq. 1 and 2, and the rate of a link as its receiver estimates it."""

from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from serving.core.keyed_random import key
from serving.core.link_monitor import BatchTimeModel, DeviceMonitor, LinkRate, MovingAverage, NodeMonitor
from serving.messages import HEADER_NBYTES, Hop, PathStats, Request, SequenceSlice, Span, TensorRef
from serving.network.link import Link

SECONDS = st.floats(0.001, 2.0)
ROWS = st.integers(1, 2000)
BATCHES = st.lists(st.tuples(ROWS, SECONDS), min_size=2, max_size=30)
PART = 64 * 8192
"""Bytes of 64 hidden states."""


# Eq. 1 and Eq. 2.


def test_the_moving_average_is_eq_1() -> None:
    average = MovingAverage()
    assert average.value is None
    for value, wanted in ((10.0, 10.0), (20.0, 12.0), (2.0, 10.0)):
        average.update(value)
        assert average.value == pytest.approx(wanted)


def fed(batches: Sequence[tuple[int, float]]) -> BatchTimeModel:
    delay = BatchTimeModel()
    for rows, took_s in batches:
        delay.update(rows, took_s)
    return delay


@given(BATCHES)
def test_the_batch_time_model_is_eq_2_and_never_decreases(batches: list[tuple[int, float]]) -> None:
    rows, took_s = batches[-1]
    before, after = fed(batches[:-1]), fed(batches)
    assert after.per_token_s >= 0.0
    assert after.base_s >= 0.0
    assume(after.per_token_s > 0.0)
    assume(after.base_s > 0.0)
    assert after.predict(rows) == pytest.approx(0.8 * before.predict(rows) + 0.2 * took_s)


@given(BATCHES, st.floats(-0.5, 0.5))
def test_the_batch_time_update_is_the_nearest_line_through_the_new_value(
    batches: list[tuple[int, float]], turn_s: float
) -> None:
    """The distance is measured at 256 tokens more, and at none."""
    before, after = fed(batches[:-1]), fed(batches)
    assume(after.per_token_s > 0.0)
    assume(after.base_s > 0.0)
    row_s = after.per_token_s + turn_s / 256
    base_s = after.predict(batches[-1][0]) - row_s * batches[-1][0]

    def away(base: float, row: float) -> float:
        return (base - before.base_s) ** 2 + (256 * (row - before.per_token_s)) ** 2

    assert away(after.base_s, after.per_token_s) <= away(base_s, row_s) + 1e-12


@given(SECONDS, st.floats(0.0, 0.005), st.lists(st.integers(1, 64), min_size=1, max_size=3), st.integers(256, 1024))
@settings(deadline=None, max_examples=40)
def test_the_batch_time_model_converges_to_the_true_line(
    base_s: float, row_s: float, few: list[int], many: int
) -> None:
    """Decodes, and now and then a prompt among them."""
    delay = fed([(n, base_s + row_s * n) for _ in range(300) for n in (*few, many)])
    for n in (*few, many, 128):
        assert delay.predict(n) == pytest.approx(base_s + row_s * n, rel=0.01)


def test_the_first_batch_gives_no_slope() -> None:
    assert fed([(100, 0.5)]) == BatchTimeModel(0.5, 0.0, True)


# Rates.


def heard(link: Link, messages: Sequence[tuple[float, int]], clock_s: float) -> LinkRate:
    """The receiver's estimate from messages (sent at, bytes) of a sender whose clock has an offset."""
    rate, channel = LinkRate(), link.channel("up", key(1, "link"))
    for at, nbytes in messages:
        rate.update(nbytes, at + clock_s, channel.arrival_s(nbytes, at))
    return rate


MBPS = st.floats(1.0, 500.0)
CLOCK = st.floats(-1e6, 1e6)


@given(MBPS, CLOCK, st.floats(0.0, 200.0), st.lists(st.integers(40, 600), min_size=3, max_size=20))
@settings(deadline=None)
def test_spaced_messages_show_the_rate(mbps: float, clock_s: float, delay_ms: float, sizes: list[int]) -> None:
    link = Link(uplink_mbps=mbps, downlink_mbps=1.0, delay_ms=delay_ms)
    messages = [(i * 100.0, nbytes * 1024) for i, nbytes in enumerate([16, *sizes])]
    assert heard(link, messages, clock_s).mbps == pytest.approx(mbps, rel=0.005)


@given(MBPS, CLOCK, st.lists(st.integers(8, 600), min_size=2, max_size=20))
@settings(deadline=None)
def test_messages_that_queue_behind_each_other_show_the_rate(mbps: float, clock_s: float, sizes: list[int]) -> None:
    link = Link(uplink_mbps=mbps, downlink_mbps=1.0, delay_ms=20.0)
    messages = [(0.0, 64), *((100.0, nbytes * 1024) for nbytes in sizes)]
    assert heard(link, messages, clock_s).mbps == pytest.approx(mbps, rel=0.005)


def test_a_prompt_in_equal_parts_shows_the_rate_before_anything_small_came() -> None:
    """A queued message shows the rate by its distance from the one before, whatever the fastest message was."""
    link = Link(uplink_mbps=80.0, downlink_mbps=1.0, delay_ms=20.0)
    assert heard(link, [(0.0, PART)] * 6, 5.0).mbps == pytest.approx(80.0, rel=0.03)


def test_a_rate_that_changes_is_followed() -> None:
    slow, fast = (Link(uplink_mbps=mbps, downlink_mbps=1.0).channel("up", 1) for mbps in (10.0, 100.0))
    rate = LinkRate()
    for i, channel in enumerate([slow] * 10 + [fast] * 30):
        rate.update(64, 100.0 * i, channel.arrival_s(64, 100.0 * i))
        rate.update(PART, 100.0 * i + 50, channel.arrival_s(PART, 100.0 * i + 50))
        if channel is slow:
            assert rate.mbps in (0.0, pytest.approx(10.0, rel=0.03))
    assert rate.mbps == pytest.approx(100.0, rel=0.03)


def test_small_messages_do_not_change_the_rate_estimate() -> None:
    rate = LinkRate()
    assert rate.mbps == 0.0
    for i in range(20):
        rate.update(64 + i * 100, i * 1.0, i * 1.0 + 0.01 + 0.001 * (i % 3))
    assert rate.mbps == 0.0


# Who says what to whom.


def asked(hop: int, path: tuple[str, ...], sent_s: float | None, condition: PathStats | None = None) -> Request:
    hops = (Hop("here", Span(0, 2, embedding=True)), Hop("cloud", Span(2, 5)), Hop("cloud.1", Span(5, 8)))
    seq = SequenceSlice("s", 0, 64, (), hidden_states=TensorRef("b", PART))
    return Request(0, seq, hops, hop, path, "device", sent_s=sent_s, path_stats=condition)


def test_a_pipeline_adds_up_what_its_nodes_see() -> None:
    first, second = NodeMonitor(), NodeMonitor()
    for rows, took_s in ((10, 0.4), (20, 0.6)):
        first.record_batch(rows, took_s)
        second.record_batch(3 * rows, 2 * took_s)
    one = first.path_stats(asked(1, ("device", "cloud"), 0.0))
    both = second.path_stats(asked(2, ("device", "cloud", "cloud.1"), 0.0, one))
    assert (one.mean_batch_tokens, one.num_nodes) == (pytest.approx(12.0), 1)
    assert (both.mean_batch_tokens, both.num_nodes) == (one.mean_batch_tokens, 2)  # all of them run the same batches
    assert min(one.per_token_s, second.batch_time.per_token_s) > 0
    for rows in (0, 7, 300):
        wanted = first.batch_time.predict(rows) + second.batch_time.predict(rows)
        assert both.base_s + both.per_token_s * rows == pytest.approx(wanted)


def test_the_uplink_is_measured_by_the_first_worker_and_passed_on() -> None:
    link, first, second = Link(uplink_mbps=40.0, downlink_mbps=1.0, delay_ms=9.0), NodeMonitor(), NodeMonitor()
    channel = link.channel("up", 1)
    for i in range(6):
        m = asked(1, ("device", "cloud"), 100.0 * i)
        small = Request(0, SequenceSlice("s", 0, 1, ()), m.hops, 1, m.path, "device", sent_s=100.0 * i)
        first.record_request(small, channel.arrival_s(HEADER_NBYTES, 100.0 * i))
        first.record_request(m, channel.arrival_s(HEADER_NBYTES + PART, 100.0 * i))
        second.record_request(asked(2, ("device", "cloud", "cloud.1"), 100.0 * i), 100.0 * i + 5)
    assert first.path_stats(asked(1, ("device", "cloud"), 0.0)).uplink_mbps == pytest.approx(40.0, rel=0.03)
    assert not second.uplinks
    one = first.path_stats(asked(1, ("device", "cloud"), 0.0))
    assert second.path_stats(asked(2, ("device", "cloud", "cloud.1"), 0.0, one)).uplink_mbps == one.uplink_mbps


def test_a_rate_is_unknown_before_the_first_message() -> None:
    assert NodeMonitor().path_stats(asked(1, ("device", "cloud"), None)) == PathStats(0.0, 0.0, 0.0, 1, 0.0)
    assert DeviceMonitor().downlink.mbps == 0.0


def test_a_drafting_step_is_timed_without_the_wait_for_the_chip() -> None:
    monitor = DeviceMonitor()
    monitor.record_draft(4, 1.0, 1.4)
    assert monitor.draft_step_s.value == pytest.approx(0.1)
    monitor.chip_free_s = 2.8
    monitor.record_draft(1, 2.0, 2.9)  # asked for at 2.0, but the chip ran a hop until 2.8
    assert monitor.draft_step_s.value == pytest.approx(0.1)
    monitor.record_draft(0, 3.0, 9.0)  # a cache was filled: no step
    assert monitor.draft_step_s.value == pytest.approx(0.1)


def test_path_stats_stay_until_newer_ones_come() -> None:
    monitor, known = DeviceMonitor(), PathStats(5.0, 0.1, 0.001, 1, 20.0)
    monitor.record_message(100, 0.0, known, 1.0)
    monitor.record_message(100, None, None, 2.0)
    assert monitor.path_stats == known


def test_a_device_counts_the_drafts_that_all_its_verdicts_reached() -> None:
    """Of 2 of 4 accepted, three were reached; of 3 of 3, three."""
    monitor = DeviceMonitor()
    monitor.record_verdict(2, 4)
    monitor.record_verdict(3, 3)
    assert (monitor.drafts_accepted, monitor.drafts_reached) == (5, 6)
