"""A path over several links adds their times, keeps the order, and queues only for the sender's own link."""

from itertools import pairwise
from math import inf

import pytest

from serving.network.channel import MultiLinkChannel
from serving.network.link import Link
from serving.network.outages import ListedOutages

OWN = Link(8, 8, delay_ms=10)
"""1 MB a second, 10 ms away."""
SLOW = Link(4, 80, delay_ms=5, overhead_nbytes=100, message_ms=1)
FAST = Link(80, 80, delay_ms=1)


def relay(*further, own=OWN, direction="up"):
    return MultiLinkChannel(own.channel(direction, 1), [(link, direction) for link in further])


def test_a_single_message_takes_the_sum_of_all_links_times():
    arrived = relay(SLOW, FAST).arrival_s(1000, 2.0)
    assert arrived - 2.0 == pytest.approx((0.001 + 0.010) + (0.0022 + 0.006) + (0.0001 + 0.001))
    assert arrived - 2.0 == pytest.approx(sum(link.mean_transfer_s(1000, "up") for link in (OWN, SLOW, FAST)))


def test_a_path_uses_the_rate_of_its_direction():
    assert relay(SLOW, direction="down").arrival_s(1000, 0.0) == pytest.approx(
        OWN.mean_transfer_s(1000, "down") + SLOW.mean_transfer_s(1000, "down")
    )


def test_a_path_of_one_link_is_that_link():
    assert relay().arrival_s(1000, 0.0) == OWN.channel("up", 1).arrival_s(1000, 0.0)


def test_messages_queue_only_for_the_first_link():
    """A megabyte behind a megabyte waits a second, though the link behind would take two for each."""
    way = relay(SLOW)
    first, second = way.arrival_s(1e6, 0.0), way.arrival_s(1e6, 0.0)
    assert second - first == pytest.approx(1.0)


def test_a_small_message_does_not_overtake_a_large_one():
    way = relay(SLOW)
    large = way.arrival_s(1e6, 0.0)
    assert way.arrival_s(10, 0.0) == large
    assert way.arrival_s(10, large + 1.0) > large + 1.0


def test_a_path_keeps_the_order_of_messages():
    way, now, arrivals = relay(SLOW, FAST), 0.0, []
    for i in range(200):
        now += (i * 7919 % 13) * 1e-3
        arrivals.append(way.arrival_s((i * 104729) % 50_000, now))
    assert all(a <= b for a, b in pairwise(arrivals))


def test_a_message_lost_on_the_first_link_does_not_delay_later_ones():
    way = relay(SLOW, own=Link(8, 8, delay_ms=10, outages=ListedOutages(((0.1, 5.0),)), detect_ms=100))
    before = way.arrival_s(1000, 0.0)
    assert way.arrival_s(1e6, 0.05) == inf
    assert before < way.arrival_s(1000, 6.0) < 7.0
