"""Tables of capacities and of loads, at toy size."""

import json
from pathlib import Path
from typing import Any

import pytest

from serving.outcomes.constant import ConstantAcceptance
from serving.progress import silent
from serving.runtimes.simulated import Simulated
from serving.studies.capacity import stages
from serving.studies.capacity.load_test import LoadTest
from serving.studies.capacity.search import CapacitySearch
from serving.studies.capacity.stages import TableLayout, find_capacity, measure_load, run_jobs
from serving.workload.slo import SloClass
from tests.serving.studies.capacity.steady_setup import SOMETIMES, setup, wisp_like
from tests.support.conf_files import architecture
from tests.support.killed_jobs import number_or_die
from tests.support.policies import policy

CLASSES = tuple(SloClass(name=f"{rate} tokens/s", tokens_per_s=rate, share=0.5) for rate in (8, 12))
SEARCH = CapacitySearch(
    warmup_s=2, window_s=2, stagger_s=1, answers=8, seeds=(0, 1), resolution=0.2, start_tokens_per_s=60, max_devices=14
)
SYSTEMS = {"SLED": policy("sled"), "WISP": wisp_like()}
RUNTIME = Simulated(SOMETIMES)
LONG: dict[str, Any] = {"max_prompt_tokens": 1000, "max_new_tokens": 20}


def table(folder: Path, file: str = "rows.json") -> Any:
    return json.loads((folder / file).read_text(encoding="utf-8"))


def test_the_capacity_stage_writes_a_table(tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    work.mkdir()

    def search(progress: Any = silent) -> None:
        find_capacity(
            out, progress=progress, work=work, setup=setup(slo=CLASSES, **LONG),
            runtime=Simulated(ConstantAcceptance(0.73, 1000)), search=SEARCH, systems=SYSTEMS,
            targets={"32B": architecture("qwen3_32b")}, processes=1,
        )  # fmt: skip

    def interrupt(done: int, total: int, note: str) -> None:
        assert total == 4
        assert note.startswith("SLED")
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(interrupt)
    kept = {file.name: file.stat().st_mtime_ns for file in work.iterdir()}
    assert len(kept) == 2
    search()
    assert {name: (work / name).stat().st_mtime_ns for name in kept} == kept
    rows = table(out)["32B"]
    found = {system: {name: list(cells[name]["by_seed"].values()) for name in ("8 tokens/s", "12 tokens/s")}
             for system, cells in rows.items()}  # fmt: skip
    for name in ("8 tokens/s", "12 tokens/s"):
        assert set(rows["SLED"][name]["by_seed"]) == {"0", "1"}
        assert min(found["WISP"][name]) > max(found["SLED"][name])
    assert min(found["SLED"]["8 tokens/s"]) > max(found["SLED"]["12 tokens/s"])
    metrics = table(out, "metrics.json")
    assert metrics["WISP, 32B , 8 tokens/s/low"] <= metrics["WISP, 32B , 8 tokens/s/high"]
    assert all(len(point) == 4 for curve in table(out, "curves.json").values() for point in curve)


def test_several_processes_find_the_capacities_of_one(tmp_path: Path) -> None:
    found = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        (out / "work").mkdir(parents=True)
        measure_load(
            out, progress=silent, work=out / "work", setup=setup(10.0), runtime=RUNTIME, processes=processes,
            load_test=LoadTest(warmup_s=2, window_s=2, stagger_s=1, answers=1), device_counts=(2, 4), seeds=(0,),
            layout=TableLayout("{devices}", "{system}"),
        )  # fmt: skip
        found.append(table(out, "measured.json"))
    for one, other in zip(*found, strict=True):
        assert one["answers"] == other["answers"]
        assert one["speeds"] == other["speeds"]
    rows = table(tmp_path / "1")["sled"]
    assert rows["4"]["slo_violation_rate/c"] == {"by_seed": {"0": 0}}
    late = {n: rows[n]["slo_round_violation_rate/c"]["by_seed"]["0"] for n in ("2", "4")}
    assert 0 < late["2"] < late["4"] < 0.5
    assert rows["4"]["slo_round_violation_rate"] == rows["4"]["slo_round_violation_rate/c"]


def test_a_process_that_is_killed_ends_the_study_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_POLL_S", 0.05)
    with pytest.raises(ValueError, match="one of its processes was killed"):
        run_jobs([0, 1, 2], ["a", "b", "c"], number_or_die, tmp_path, silent, 2)


def test_variants_replace_fields_of_a_case(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()

    def load(variants: dict[str, dict[str, Any]]) -> Any:
        measure_load(
            tmp_path, progress=silent, work=tmp_path / "work", setup=setup(2.0), runtime=RUNTIME, processes=1,
            load_test=LoadTest(warmup_s=2, window_s=2, stagger_s=1, answers=1), device_counts=(1,), seeds=(0,),
            systems={"SLED": policy("sled"), "centralized": policy("cloud_centric")}, variants=variants,
            layout=TableLayout("{system}", "{variant}"),
        )  # fmt: skip
        return table(tmp_path)

    rows = load(
        {
            "one": {"policy.draft.k": 1},
            "right": {"outcomes.acceptance_rate": 1.0, "SLED: policy.scheduler.max_num_seqs": 1},
        }
    )
    assert rows["one"]["SLED"]["drafts_per_verification"] == {"by_seed": {"0": 1}}
    assert rows["right"]["SLED"]["acceptance_rate"] == {"by_seed": {"0": 1}}
    assert rows["one"]["centralized"]["goodput_tokens_per_s"] == rows["right"]["centralized"]["goodput_tokens_per_s"]
    for wrong, says in (({"policy.draft.kk": 1}, "no system"), ({"policy.draft.k": 0}, "at least 1")):
        with pytest.raises(ValueError, match=says):
            load({"wrong": wrong})
    with pytest.raises(ValueError, match="names 'devices'"):
        find_capacity(
            tmp_path, progress=silent, work=tmp_path / "none", setup=setup(), runtime=RUNTIME, search=SEARCH,
            layout=TableLayout("{devices}"), processes=1,
        )  # fmt: skip


def test_a_layout_that_leaves_a_part_out_is_refused_before_any_work(tmp_path: Path) -> None:
    """The second result would replace the first."""
    common: dict[str, Any] = {
        "progress": silent, "work": tmp_path / "none", "setup": setup(slo=CLASSES), "runtime": RUNTIME, "processes": 1,
        "systems": {"SLED": policy("sled")},
    }  # fmt: skip
    changed = {"one": {"policy.draft.k": 1}, "two": {"policy.draft.k": 2}}
    both = r"layout: 'SLED, .* one.*' and 'SLED, .* two.*' have one place in the table, row 'SLED' of group 'g'"
    with pytest.raises(ValueError, match=both):
        find_capacity(tmp_path, search=SEARCH, variants=changed, layout=TableLayout("{system}", "g"), **common)
    load: dict[str, Any] = {"load_test": LoadTest(), "seeds": (0,), "layout": TableLayout("{system}", "g")}
    with pytest.raises(ValueError, match=both):
        measure_load(tmp_path, device_counts=(1,), variants=changed, **load, **common)
    with pytest.raises(ValueError, match=r"2 devices, seed 0' and .* 4 devices, seed 0' have one place"):
        measure_load(tmp_path, device_counts=(2, 4), **load, **common)
    assert list(tmp_path.iterdir()) == []


def test_a_variant_of_classes_and_seeds_is_what_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def search(job: stages.CapacityJob) -> dict[str, Any]:
        searched.append((job.case.variant, [one.name for one in job.case.setup.workload.slo], job.search.seeds))
        return {"by_seed": [float(seed) for seed in job.search.seeds], "low": None, "bounded": False, "curve": []} | (
            dict.fromkeys(stages.CAPACITY_METRICS, None)
        )

    (tmp_path / "work").mkdir()
    monkeypatch.setattr(stages, "run_capacity_job", search)
    find_capacity(
        tmp_path, progress=silent, work=tmp_path / "work", setup=setup(slo=CLASSES), runtime=RUNTIME, search=SEARCH,
        variants={"plain": {}, "other": {"workload.slo": (SloClass(name="5 tokens/s", tokens_per_s=5),),
                                         "load_test.seeds": (7, 8, 9)}}, processes=1,
    )  # fmt: skip
    assert searched == [
        ("plain", ["8 tokens/s"], (0, 1)),
        ("plain", ["12 tokens/s"], (0, 1)),
        ("other", ["5 tokens/s"], (7, 8, 9)),
    ]
    other = next(cells for group, cells in table(tmp_path).items() if group.endswith("other"))["sled"]
    assert other["5 tokens/s"] == {"by_seed": {"7": 7.0, "8": 8.0, "9": 9.0}}
