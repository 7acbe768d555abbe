"""The metrics of a run and their descriptions."""

import pytest

from serving.frontend.ui.run_metrics import RunMeter
from serving.metrics.recorder import SessionRecord
from tests.serving.frontend.ui.tiny_page import meter
from tests.support.conf_files import fleet
from tests.support.fake_setup import setup


def record() -> SessionRecord:
    found = SessionRecord("s", "device-0", 5, arrived_s=10.0, started_s=10.5)
    found.tokens, found.origins, found.token_times_s = (
        [1, 2, 3, 4],
        ["device", "cloud", "offline", "bonus"],
        [11, 12, 12, 14],
    )
    found.device_busy_s, found.cloud_busy_s, found.uplink_nbytes, found.downlink_nbytes = 0.5, 0.2, 100, 40
    found.node_busy_s = {"near-0": 0.15, "cloud-0": 0.05}
    return found


def test_metrics_are_computed_as_described() -> None:
    bed, found = setup().hardware, meter().read(record(), 14.0)
    assert (found["latency/ttft_s"], found["latency/tbt_s"]) == (1, 1)
    counts = ("tokens", "cloud_tokens", "device_tokens", "offline_tokens", "cost/w_generated")
    assert [found[key] for key in counts] == [4, 2, 2, 1, 0.5]
    assert found["resources/device_energy_j"] == bed.device_fleets[0].joules(0.5, 3.0)
    assert found["resources/cloud_energy_j"] == pytest.approx(bed.head_fleet.joules(0.2))
    price = bed.head_fleet.chip.price
    assert price is not None
    assert found["cost/usd_per_million_tokens"] == pytest.approx(1e6 * price.usd_per_hour * 0.2 / 3600 / 4)
    assert found["resources/cloud_busy_s"] == 0.2


def test_each_nodes_share_is_of_its_own_chip() -> None:
    bed, near = setup().hardware, fleet("jetson_orin_nx_16gb")
    own = RunMeter(bed.device_fleets[0], bed.head_fleet, {"near-0": near, "cloud-0": bed.head_fleet}, True, False)
    found = own.read(record(), 14.0)
    assert found["resources/cloud_energy_j"] == near.joules(0.15) + bed.head_fleet.joules(0.05)
    usd = [near.usd(0.15), bed.head_fleet.usd(0.05)]
    assert found["cost/usd_per_million_tokens"] == pytest.approx(1e6 * sum(each or 0 for each in usd) / 4)


def test_unknown_metrics_are_none_and_described_as_unknown() -> None:
    def unknown(which: RunMeter) -> set[str]:
        return {key for key, value in which.read(record(), 14.0).items() if value is None}

    assert unknown(meter()) == set()
    cost = "cost/usd_per_million_tokens"
    assert unknown(meter(hardware_paced=False)) == {"resources/device_energy_j", "resources/cloud_energy_j", cost}
    assert unknown(meter(remote_cloud=True)) == {"resources/cloud_energy_j", "resources/cloud_busy_s", cost}
    early = meter().read(SessionRecord("s", "device-0", 5, arrived_s=1.0), 1.0)
    assert early["latency/ttft_s"] is early["latency/tbt_s"] is early["cost/w_generated"] is None
    words = {each["key"]: each["description"] for each in meter(hardware_paced=False, remote_cloud=True).metrics}
    assert "pace=wall" in words["resources/device_energy_j"]
    assert "another process" in words["resources/cloud_busy_s"]
    assert "another process" in words[cost]
    assert "USD an hour" in words[cost]
