"""What a run is counted as, and what its words say of it."""

from serving.frontend.ui.run_metrics import RunMeter
from serving.metrics.recorder import SessionRecord
from tests.serving.frontend.ui.tiny_page import PF, meter
from tests.support.fake_setup import setup


def record() -> SessionRecord:
    found = SessionRecord("s", "device-0", 5, arrived_s=10.0, started_s=10.5)
    found.tokens, found.origins, found.token_times_s = (
        [1, 2, 3, 4],
        ["device", "cloud", "offline", "bonus"],
        [11, 12, 12, 14],
    )
    found.device_busy_s, found.cloud_busy_s, found.uplink_nbytes, found.downlink_nbytes = 0.5, 0.2, 100, 40
    return found


def test_metrics_are_computed_as_described() -> None:
    bed, found = setup().hardware, meter().read(record(), 14.0)
    assert (found["ttft_ms"], found["tbt_ms"]) == (1000, 1000)
    assert (
        found["tokens"],
        found["cloud_tokens"],
        found["device_tokens"],
        found["offline_tokens"],
        found["cloud_share"],
    ) == (
        4,
        2,
        2,
        1,
        0.5,
    )
    assert found["device_energy_j"] == bed.device_fleets[0].joules(0.5, 3.0)
    assert found["cloud_energy_j"] == bed.head_fleet.joules(0.2)
    assert found["cloud_cost_ms"] == round(1000 * 1.0 * 0.5 / PF, 3)
    assert found["cloud_busy_ms"] == 200


def test_unknown_metrics_are_none_and_described_as_unknown() -> None:
    def unknown(which: RunMeter) -> set[str]:
        return {key for key, value in which.read(record(), 14.0).items() if value is None}

    assert unknown(meter()) == set()
    assert unknown(meter(hardware_paced=False)) == {"device_energy_j", "cloud_energy_j"}
    assert unknown(meter(remote_cloud=True)) == {"cloud_energy_j", "cloud_busy_ms"}
    assert unknown(meter(packing_factor=None)) == {"cloud_cost_ms"}
    early = meter().read(SessionRecord("s", "device-0", 5, arrived_s=1.0), 1.0)
    assert early["ttft_ms"] is early["tbt_ms"] is early["cloud_share"] is None
    words = {
        each["key"]: each["description"]
        for each in meter(hardware_paced=False, remote_cloud=True, packing_factor=None).metrics
    }
    assert "pace=wall" in words["device_energy_j"]
    assert "another process" in words["cloud_busy_ms"]
    assert "not known" in words["cloud_cost_ms"]
