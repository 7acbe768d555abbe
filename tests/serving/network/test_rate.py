"""A channel's capacity from its bandwidth and its signal: Hyperion, section III-B."""

from math import inf, nan

import pytest

from serving.network.link import Link
from serving.network.rate import ShannonCapacity
from tests.support.conf_files import fields


@pytest.mark.parametrize(
    ("mhz", "db", "mbps"),
    [(20, 0, 20), (1, 10 * 0.47712125472, 2), (40, 20, 40 * 6.658211), (10, -10, 10 * 0.137504), (0.2, 30, 1.99345)],
)
def test_shannon_capacity_follows_bandwidth_and_sinr(mhz, db, mbps):
    """At 0 dB a bit a second and hertz; log2(1 + 3) is 2, log2(101) is 6.658211, log2(1.1) is 0.137504."""
    assert ShannonCapacity(mhz, db).mean_mbps == pytest.approx(mbps, rel=1e-5)


def test_shannon_capacity_is_equal_in_both_directions():
    link = Link(uplink=ShannonCapacity(20, 0), downlink=ShannonCapacity(1, 0), delay_ms=2)
    assert link.channel("up", 3).arrival_s(1e6, 0.0) == pytest.approx(8 / 20 + 0.002)
    assert link.mean_transfer_s(1e6, "down") == pytest.approx(8.002)
    assert link.described.startswith("20 Mbit/s (20 MHz at 0 dB) up, 1 Mbit/s (1 MHz at 0 dB) down")


@pytest.mark.parametrize("mhz", [0, -1, inf, nan])
def test_an_impossible_bandwidth_of_a_channel_is_refused(mhz):
    with pytest.raises(ValueError, match=r"network: bandwidth_mhz=.* must be above 0 and finite"):
        ShannonCapacity(mhz, 10)


@pytest.mark.parametrize("db", [inf, -inf, nan])
def test_an_impossible_sinr_is_refused(db):
    with pytest.raises(ValueError, match=r"network: sinr_db=.* must be a finite number of decibels"):
        ShannonCapacity(10, db)


@pytest.mark.parametrize(("db", "mbps"), [(-200, "0"), (5000, "inf")])
def test_a_signal_that_carries_nothing_or_without_end_is_refused(db, mbps):
    with pytest.raises(ValueError, match=rf"10 MHz at sinr_db={db} carry {mbps} Mbit/s.*give another sinr_db"):
        ShannonCapacity(10, db)


def test_the_figures_of_the_shannon_configuration_are_marked_as_assumed():
    node = fields("network", "shannon")
    assert {node["sources"][way][:11] for way in ("uplink", "downlink")} == {"unverified:"}
    assert node["uplink_mbps"] is node["downlink_mbps"] is None
