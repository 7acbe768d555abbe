from importlib import import_module
from math import isfinite
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.keyed_random import key
from serving.core.provenance import evidence_class
from serving.network.link import Link
from tests.support.conf_files import fields, link, names

PLAIN = Link(uplink_mbps=8, downlink_mbps=80, delay_ms=10)


PARTS = ("uplink", "downlink", "outages")
TRACED = {
    "mahimahi": "1\n2\n",
    "throughput_trace": "1 8\n2 16\n",
    "ucc_5g": "Timestamp,State,DL_bitrate\n2019.12.16_11.49.59,D,8000\n",
}


def whole(name, folder):
    """The link of a conf file, the files that it asks for written into `folder`."""
    node = fields("network", name)
    for part in {*PARTS} & {*node}:
        module, _, made = node[part].pop("_target_").rpartition(".")
        if "path" in node[part]:
            assert node[part]["path"] is None
            node[part]["path"] = folder / "trace"
            (folder / "trace").write_text(TRACED[name])
        node[part] = getattr(import_module(module), made)(**node[part])
    return Link(**node)


@pytest.mark.parametrize("name", names("network"))
def test_every_link_builds_and_sources_its_figures(name, tmp_path):
    made = whole(name, tmp_path)
    extras = ("delay_ms", "jitter_ms", "loss", "overhead_nbytes", "message_ms", *PARTS)
    given = {each for each in ("uplink_mbps", "downlink_mbps", *extras) if getattr(made, each)}
    assert set(made.sources) == given | ({"detect_ms"} if made.outages else set())
    assert all(evidence_class(source) for source in made.sources.values())


def test_every_trace_format_and_an_outage_link_has_a_configuration():
    assert {*TRACED, "flaky"} <= set(names("network"))


def test_the_documented_link_profiles_exist():
    promised = {"lan_1gbps", "lan_100mbps", "wifi", "lte", "5g", "mbps_10", "mbps_1", "mbps_0_1", "kbps_50", "ideal"}
    assert promised <= set(names("network"))
    assert (link("wifi").uplink_mbps, link("wifi").downlink_mbps) == (7.5 * 8, 12.5 * 8)
    assert link("kbps_50").uplink_mbps == 0.05


def test_a_message_takes_its_bytes_and_the_delay():
    assert PLAIN.channel("up", 0).arrival_s(1000, now_s=5.0) == pytest.approx(5 + 0.001 + 0.010)
    assert PLAIN.channel("down", 0).arrival_s(1000, now_s=5.0) == pytest.approx(5 + 0.0001 + 0.010)


def test_synera_s_distribution_over_ten_megabits():
    """32,000 probabilities in fp16 take "over 50 ms" at 10 Mbit/s (Synera, section 4.2)."""
    assert Link(10, 10).mean_transfer_s(2 * 32000, "up") == pytest.approx(0.0512)


def test_messages_queue_behind_each_other_and_propagate_together():
    channel = PLAIN.channel("up", 0)
    assert [channel.arrival_s(1_000_000, 0.0) for _ in range(3)] == pytest.approx([1.01, 2.01, 3.01])
    assert channel.arrival_s(1_000_000, 10.0) == pytest.approx(11.01)


def test_each_message_pays_for_headers_and_stack():
    chatty = Link(8, 80, delay_ms=10, overhead_nbytes=1000, message_ms=2)
    assert chatty.channel("up", 0).arrival_s(0, 0.0) == pytest.approx(0.001 + 0.012)
    assert chatty.mean_transfer_s(1000, "up") == pytest.approx(0.002 + 0.012)


@pytest.mark.parametrize(("shape", "mean"), [("uniform", 0.010), ("half_normal", 0.020 * 0.7979)])
def test_jitter_has_its_mean_and_never_reduces_delay(shape, mean):
    late = []
    for serial in range(2000):
        channel = Link(8, 8, jitter_ms=20, jitter_shape=shape).channel("up", key(serial, "link"))
        late.append(channel.arrival_s(0, 0.0))
    assert min(late) >= 0
    assert fmean(late) == pytest.approx(mean, rel=0.05)


def test_losses_cost_doubling_timeouts_and_resent_bytes():
    lossy = Link(8, 8, loss=0.5, timeout_ms=200)
    arrivals = [lossy.channel("up", key(serial, "link")).arrival_s(1000, 0.0) for serial in range(2000)]
    for losses, share in ((0, 0.5), (1, 0.25), (2, 0.125)):
        expected = 0.001 * (1 + losses) + 0.2 * (2**losses - 1)
        hits = sum(arrival == pytest.approx(expected) for arrival in arrivals)
        assert hits / 2000 == pytest.approx(share, abs=0.03)


def test_a_resent_message_pays_for_its_headers_again():
    lossy = Link(8, 8, loss=0.5, timeout_ms=0, overhead_nbytes=1000)
    arrivals = {round(lossy.channel("up", key(serial, "link")).arrival_s(1000, 0.0), 9) for serial in range(200)}
    assert {0.002, 0.004, 0.006} <= arrivals
    assert not {0.003, 0.005} & arrivals


def test_the_most_lossy_link_delivers_at_some_time():
    lossy = Link(8, 8, loss=0.999)
    assert all(isfinite(lossy.channel("up", key(serial, "link")).arrival_s(1000, 0.0)) for serial in range(20))


def test_a_retransmission_timeout_doubles_up_to_a_minute():
    lossy = Link(8, 8, loss=0.5, timeout_ms=40_000)
    arrivals = {lossy.channel("up", key(serial, "link")).arrival_s(0, 0.0) for serial in range(200)}
    assert {0.0, 40.0, 100.0, 160.0} <= arrivals


def test_loss_and_jitter_depend_on_the_message_number_not_its_size():
    shaky = Link(8, 8, jitter_ms=20)
    small, large = shaky.channel("up", 7), shaky.channel("up", 7)
    assert large.arrival_s(1000, 0.0) - small.arrival_s(0, 0.0) == pytest.approx(0.001)


@given(st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 0.5)), min_size=2, max_size=30), st.integers(0, 2**32))
def test_messages_never_overtake_and_never_arrive_early(messages, stream):
    shaky = Link(8, 8, delay_ms=5, jitter_ms=30, loss=0.3, timeout_ms=100)
    channel, now, last = shaky.channel("up", stream), 0.0, 0.0
    for nbytes, pause_s in messages:
        now += pause_s
        arrival = channel.arrival_s(nbytes, now)
        assert arrival >= max(last, now + nbytes * 1e-6 + 0.005 - 1e-9)
        last = arrival


@pytest.mark.parametrize("rate", [0, -5, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["uplink_mbps", "downlink_mbps"])
def test_impossible_bandwidth_is_refused(name, rate):
    with pytest.raises(ValueError, match=rf"network.{name}=.* Mbit/s must be more than 0 and finite"):
        Link(**{"uplink_mbps": 1, "downlink_mbps": 1, name: rate})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delay_ms": -1}, "network.delay_ms=-1 must be 0 or more"),
        ({"jitter_ms": float("nan")}, "network.jitter_ms=nan must be 0 or more"),
        ({"loss": 1.0}, r"network.loss=1.0 must be a share of transmissions"),
        ({"jitter_shape": "pareto"}, "must be uniform or half_normal"),
        ({"sources": {"delay_ms": "?"}}, "network, delay_ms: source '.*' does not say"),
    ],
)
def test_impossible_links_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Link(1, 1, **change)


class Doubling:
    """One megabyte in the first second, two in the second, and so on; for the downlink."""

    directions = ("down",)
    mean_mbps = 80.0
    described = "more and more"

    def rate(self, direction, stream):
        assert (direction, stream) == ("down", 7)
        return self

    def departure_s(self, nbytes, start):
        return start + nbytes * 1e-6 if start < 1 else start + nbytes * 0.5e-6

    def nbytes_between(self, start, end):
        raise NotImplementedError


def test_a_changing_rate_combines_with_delay_jitter_and_loss():
    made = Link(uplink_mbps=8, downlink=Doubling(), delay_ms=10, message_ms=2, overhead_nbytes=1000)
    channel = made.channel("down", 7)
    assert [channel.arrival_s(999_000, 0.0), channel.arrival_s(999_000, 0.0)] == pytest.approx([1.012, 1.512])
    assert made.channel("up", 7).arrival_s(999_000, 0.0) == pytest.approx(1.012)
    assert made.mean_transfer_s(999_000, "down") == pytest.approx(0.1 + 0.012)
    assert made.described == (
        "8 Mbit/s up, more and more down, 10 ms delay, 0 ms jitter, 1000 bytes and 2 ms a message, 0.0% lost"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"downlink_mbps": 8},
            r"one of uplink_mbps \(a constant\) and uplink \(a trace\) must be given; neither is given",
        ),
        ({"uplink_mbps": 8}, "one of downlink_mbps .* neither is given. Set the other to null"),
        ({"uplink_mbps": 8, "downlink_mbps": 20, "downlink": Doubling()}, "both are, downlink_mbps=20, given"),
        (
            {"uplink": Doubling(), "downlink_mbps": 8},
            "network.uplink: Doubling has no rate of an uplink",
        ),
    ],
)
def test_each_direction_needs_exactly_one_rate_that_covers_it(options, message):
    with pytest.raises(ValueError, match=message):
        Link(**options)


def test_the_two_directions_of_a_device_draw_independently():
    shaky = Link(8, 8, jitter_ms=20)
    assert shaky.channel("up", 7).arrival_s(0, 0.0) != shaky.channel("down", 7).arrival_s(0, 0.0)


@given(st.integers(0, 10**9), st.floats(0, 1000))
def test_a_constant_rate_carries_the_bytes_sent(nbytes, start):
    rate = PLAIN.rate("up")
    assert rate.nbytes_between(start, rate.departure_s(nbytes, start)) == pytest.approx(nbytes, abs=1)
