"""What a run is counted as, and what its words say of it."""

from fake_setup import setup
from frontend.ui.tiny_page import PF, meter

from serving.frontend.ui.run_metrics import RunMeter
from serving.metrics.recorder import SessionRecord


def record() -> SessionRecord:
    found = SessionRecord("s", "device-0", 5, arrived_s=10.0, started_s=10.5)
    found.tokens, found.origins, found.token_times_s = (
        [1, 2, 3, 4],
        ["device", "cloud", "offline", "bonus"],
        [11, 12, 12, 14],
    )
    found.device_busy_s, found.cloud_busy_s, found.uplink_nbytes, found.downlink_nbytes = 0.5, 0.2, 100, 40
    return found


def test_figures_are_what_their_words_say() -> None:
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


def test_what_is_not_known_is_no_figure() -> None:
    def unknown(which: RunMeter) -> set[str]:
        return {key for key, value in which.read(record(), 14.0).items() if value is None}

    assert unknown(meter()) == set()
    assert unknown(meter(timed=False)) == {"device_energy_j", "cloud_energy_j"}
    assert unknown(meter(afar=True)) == {"cloud_energy_j", "cloud_busy_ms"}
    assert unknown(meter(factor=None)) == {"cloud_cost_ms"}
    early = meter().read(SessionRecord("s", "device-0", 5, arrived_s=1.0), 1.0)
    assert early["ttft_ms"] is early["tbt_ms"] is early["cloud_share"] is None
    words = {each["key"]: each["description"] for each in meter(timed=False, afar=True, factor=None).metrics}
    assert "pace=wall" in words["device_energy_j"]
    assert "another process" in words["cloud_busy_ms"]
    assert "not known" in words["cloud_cost_ms"]
