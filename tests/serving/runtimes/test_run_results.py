"""The files of a run, read back."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.learned.thresholds import Thresholds
from serving.metrics.recorder import SessionRecord
from serving.runtimes.emulated import Emulated, simulate
from serving.runtimes.run_results import write_results
from serving.runtimes.runtime import RunResult
from tests.support.conf_files import bed, link, radio_named
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import Words, models, queries, setup
from tests.support.simulated_tiers import tiered_setup, tiers


@pytest.fixture(params=["edge_centric", "cloud_centric", "synera"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, SessionRecord]]:
    made, asked = setup(request.param), queries(5)
    records = simulate(made, models(), asked)
    write_results(tmp_path, made, Emulated(), RunResult(asked, records, Words(), LAYERS))  # type: ignore[arg-type]
    return tmp_path, records


def test_results_have_one_row_per_request(written: tuple[Path, dict[str, SessionRecord]]) -> None:
    folder, records = written
    rows = pq.read_table(folder / "requests.parquet").to_pylist()
    assert [row["request"] for row in rows] == [f"r{i:05d}" for i in range(5)]
    for row in rows:
        record = records[row["request"]]
        assert row["tokens"] == record.tokens
        assert row["text"] == Words().decode(record.tokens)
        assert row["ttft_s"] == record.token_times_s[0] - record.arrived_s
        assert len(row["tbt_s"]) == len(record.tokens) - 1
        assert sum(row["tbt_s"]) == pytest.approx(record.token_times_s[-1] - record.token_times_s[0])
        assert row["drafts_verified"] >= row["drafts_accepted"]
        own = sum(o in ("device", "accepted") for o in record.origins)
        assert row["drafts_unused"] == (row["drafted"] - own if row["drafted"] else 0) >= 0
        assert row["quality"] == 0.0
        assert row["device_energy_j"] >= 0
        assert (row["radio_energy_j"] > 0) == (record.uplink_messages > 0)


def test_drafts_that_no_model_made_are_not_counted_as_unused(tmp_path: Path) -> None:
    """Accepted tokens of heads or of the text itself cost no drafting."""
    made, asked = setup("cloud_centric"), queries(5)
    records = simulate(made, models(), asked)
    for record in records.values():
        record.origins[:3] = ["accepted"] * 3
    write_results(tmp_path, made, Emulated(), RunResult(asked, records, Words(), LAYERS))  # type: ignore[arg-type]
    rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert {(row["drafted"], row["drafts_unused"]) for row in rows} == {(0, 0)}


def test_column_types_do_not_depend_on_the_first_row(written: tuple[Path, dict[str, SessionRecord]]) -> None:
    schema = pq.read_schema(written[0] / "requests.parquet")
    names = ("slo", "slo_ttft_s", "ttft_s", "tokens", "drafts_unused")
    assert {name: str(schema.field(name).type) for name in names} == {
        "slo": "string", "slo_ttft_s": "double", "ttft_s": "double", "tokens": "list<element: int32>",
        "drafts_unused": "int64",
    }  # fmt: skip
    assert pq.read_schema(written[0] / "chunks.parquet").names == [
        "request",
        "position",
        "num_tokens",
        "accepted",
        "replaced",
        "confidence",
        "importance",
    ]


def test_metadata_describes_runtime_and_timing(written: tuple[Path, dict[str, SessionRecord]]) -> None:
    meta = json.loads((written[0] / "meta.json").read_text())
    assert meta["runtime"] == "emulated"
    if meta["policy"] == "cloud_centric":
        assert set(meta["timing"]) == {"cloud"}
    else:
        assert "roofline of jetson_agx_orin_32gb in mode 30W, tinyllama_1_1b, fp16" in meta["timing"]["device"]
    assert meta["packing_factor"] == {"value": 6.0, "source": "Synera, Table 3"}
    assert meta["horizon_s"] == max(r.ended_s or 0.0 for r in written[1].values())


def test_without_timelines_stalls_are_unknown(tmp_path: Path) -> None:
    made, asked = setup("synera"), queries(3)
    records = simulate(made, models(), asked, detail=False)
    write_results(tmp_path, made, Emulated(), RunResult(asked, records, Words(), LAYERS))  # type: ignore[arg-type]
    columns = ["link_stall_s", "cloud_stall_s", "cloud_residence_s", "radio_energy_j"]
    rows = pq.read_table(tmp_path / "requests.parquet", columns=columns).to_pylist()
    assert rows == [dict.fromkeys(columns)] * 3


def test_a_report_says_that_no_draft_was_accepted_while_synera_was_profiled(tmp_path: Path) -> None:
    made, asked = setup("synera"), queries(1)
    useless = Thresholds(1.0, 0.0, (0.5,), (0.1,), {"pair": "small + large"}, num_fully_accepted=0)
    offload = replace(made.policy.offload, thresholds=useless)  # type: ignore[type-var]
    lookahead = replace(made.policy.lookahead, thresholds=useless)  # type: ignore[type-var]
    made = replace(made, policy=replace(made.policy, offload=offload, lookahead=lookahead))
    records = simulate(made, models(), asked)
    write_results(tmp_path, made, Emulated(), RunResult(asked, records, Words(), LAYERS))  # type: ignore[arg-type]
    notes = json.loads((tmp_path / "meta.json").read_text())["notes"]
    assert sum("not one of 1 drafts was accepted as a whole (alpha 0.00; small + large" in note for note in notes) == 1


def energies(folder: Path, made: Setup, **run: bool) -> list[dict[str, float | None]]:
    asked = queries(4)
    records = simulate(made, models(), asked)
    write_results(folder, made, Emulated(), RunResult(asked, records, Words(), LAYERS, **run))  # type: ignore[arg-type]
    return pq.read_table(folder / "requests.parquet", columns=["device_energy_j", "radio_energy_j"]).to_pylist()


def test_a_policy_that_never_uses_the_network_pays_no_radio(tmp_path: Path) -> None:
    for network in ("lte", "mbps_10"):
        rows = energies(tmp_path, setup("edge_centric", network=link(network)))
        assert [row["radio_energy_j"] for row in rows] == [0.0] * 4
        assert all(row["device_energy_j"] for row in rows)


def test_the_report_names_the_link_to_the_first_tier(tmp_path: Path) -> None:
    first = link("kbps_50")
    made = tiered_setup(tiers(1, 1, link=first))
    energies(tmp_path, made)
    assert json.loads((tmp_path / "meta.json").read_text())["links"] == [first.described]
    assert Topology(made, LAYERS).device_link("device-0") == first != made.network


def test_a_link_without_a_radio_leaves_that_energy_unknown_and_the_chips_known(tmp_path: Path) -> None:
    rows = energies(tmp_path, setup("cloud_centric", network=link("mbps_10")))
    assert [row["radio_energy_j"] for row in rows] == [None] * 4
    assert all(row["device_energy_j"] for row in rows)
    assert json.loads((tmp_path / "meta.json").read_text())["radios"] == ["unknown"]


def test_lte_costs_more_than_wifi_and_a_cable_nothing(tmp_path: Path) -> None:
    """The same link, three radios: times, decisions and the chip's energy are the same."""
    found = {}
    for name in ("lte", "wifi", "wired"):
        made = setup("synera", network=replace(link("mbps_10"), radio=radio_named(name)))
        found[name] = energies(tmp_path, made)
    assert len({tuple(row["device_energy_j"] for row in rows) for rows in found.values()}) == 1
    lte, wifi, wired = (sum(row["radio_energy_j"] or 0.0 for row in rows) for rows in found.values())
    assert lte > 10 * wifi > wired == 0


def test_the_radio_is_unknown_where_links_or_chips_took_other_times(tmp_path: Path) -> None:
    for run in ({"links_timed": False}, {"local_timing": True}):
        rows = energies(tmp_path, setup("cloud_centric", network=link("wifi")), **run)
        assert [row["radio_energy_j"] for row in rows] == [None] * 4


def test_cold_and_sustained_figures_stand_beside_each_other(tmp_path: Path) -> None:
    energies(tmp_path, setup("synera", hardware="pixel7"))
    heat = json.loads((tmp_path / "meta.json").read_text())["heat"]
    assert set(heat) == {"pixel_7", "rtx_a6000"}
    phone, server = heat["pixel_7"], heat["rtx_a6000"]
    assert phone["sustained_s"] == pytest.approx(phone["cold_s"] / 0.82)
    assert phone["run"] == "cold"
    assert (server["sustained_s"], server["curve"]) == (None, None)
    assert server["cold_s"] > 0


def test_a_hot_device_takes_longer_by_the_share_and_decides_alike(tmp_path: Path) -> None:
    def run(heat: str) -> dict[str, SessionRecord]:
        bed_ = bed("pixel7")
        hot = replace(bed_, device=replace(bed_.device, heat=heat))  # type: ignore[type-var]
        return simulate(setup("edge_centric", hardware=hot), models(), queries(4))

    cold, hot = run("cold"), run("sustained")
    for session, record in cold.items():
        assert hot[session].tokens == record.tokens
        assert hot[session].device_busy_s == pytest.approx(record.device_busy_s / 0.82)


@pytest.mark.parametrize(
    ("cut", "tokens"),
    [((0, 40, 7, 0, 0), "7 to 40 tokens"), ((0, 9, 9, 0, 0), "9 tokens"), ((0, 1, 1, 0, 0), "1 token")],
)
def test_prompts_that_lost_tokens_to_the_limit_are_said(tmp_path: Path, cut: tuple[int, ...], tokens: str) -> None:
    made, asked = setup("cloud_centric"), queries(5)
    asked = [replace(query, num_cut=lost) for query, lost in zip(asked, cut, strict=True)]
    records = simulate(made, models(), asked)
    write_results(tmp_path, made, Emulated(), RunResult(asked, records, Words(), LAYERS))  # type: ignore[arg-type]
    notes = json.loads((tmp_path / "meta.json").read_text())["notes"]
    (said,) = (note for note in notes if "longer than" in note)
    assert said.startswith("2 of 5 prompts are longer than workload.max_prompt_tokens=")
    assert said.endswith(f"and lost {tokens}")


@pytest.mark.parametrize(("positions", "noted"), [(20, True), (4096, False), (None, False)])
def test_requests_beyond_a_models_positions_are_noted(tmp_path: Path, positions: int | None, noted: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
    made, asked = setup("cloud_centric"), queries(3)
    object.__setattr__(made.pair.cloud, "path", tmp_path)
    records = simulate(made, models(), asked)
    write_results(tmp_path, made, Emulated(), RunResult(asked, records, Words(), LAYERS))  # type: ignore[arg-type]
    notes = json.loads((tmp_path / "meta.json").read_text())["notes"]
    assert any("the cloud's model was trained for 20" in note for note in notes) == noted


class Shouted:
    """A metric that returns a text."""

    name: str = "shouted"

    def score(self, text: str, prompt: object) -> Any:
        return text.upper()


def test_what_a_metric_returns_is_checked_before_it_is_written(tmp_path: Path) -> None:
    made, asked = setup("cloud_centric"), queries(2)
    dataset: Any = Namespace(name="shouts", metrics=(Shouted(),), measures_quality_of="pretrained")
    made = replace(made, workload=replace(made.workload, dataset=dataset))
    records = simulate(made, models(), asked)
    with pytest.raises(ValueError, match=r"^Shouted.score returned '.*' for the prompt 'p\d+'; a number from 0 to 1"):
        write_results(tmp_path, made, Emulated(), RunResult(asked, records, Words(), LAYERS))  # type: ignore[arg-type]
