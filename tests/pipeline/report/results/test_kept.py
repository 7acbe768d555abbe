"""From a finished sweep to a kept result: what is kept, and what is refused."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipeline.config import sources
from pipeline.report.job_result import JobResult, read_result
from pipeline.report.records import Records
from pipeline.report.results import kept
from pipeline.report.results.kept import KeptResult, KeptResultError, keep, read_results
from pipeline.report.summary import summarise
from tests.pipeline.report.serve_artifact import drawn

EXPERIMENT = "synera/table5"
METHODS = ("edge_centric", "edge_centric_early_exit", "no_early_exit", "no_lookahead", "synera")
SEEDS = (0, 3, 4, 5, 6)
JOBS = len(SEEDS) * len(METHODS)
FILES = {name: sources.file_digest(name) for name in ("config", f"experiment/{EXPERIMENT}")}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The jobs of the experiment, each with a drawn artifact in place of a served one."""
    folder = tmp_path_factory.mktemp("kept")
    number = 0
    for seed in SEEDS:
        for place, method in enumerate(METHODS):
            artifact = drawn(folder / f"serve{number}", "synera", 0.2 + place / 10, right=0.5, n=30, seed=seed + 1)
            metrics = summarise(Records.read(artifact)).metrics()
            words = (
                f"+experiment={EXPERIMENT}",
                f"training.seed={seed}",
                f"+variant/synera/method={method}",
                "outputs=x",
            )
            JobResult(
                "complete", number, "synera", words, "d", str(artifact), metrics=metrics, files=FILES, revision="abc"
            ).write(folder / "sweep" / str(number))
            number += 1
    return folder / "sweep"


@pytest.fixture
def job(sweep):
    """The first job, put back afterwards."""
    before = read_result(sweep / "0")
    yield before
    before.write(sweep / "0")


def test_a_kept_result_has_rows_seeds_claims_and_digests(sweep, tmp_path):
    path = keep(sweep, tmp_path)
    assert path == tmp_path / "synera" / "table5.json"
    (found,) = read_results(tmp_path)
    assert (found.experiment, found.num_jobs, found.revisions) == (EXPERIMENT, JOBS, ("abc",))
    assert found.files == FILES
    assert found.changes() == []
    assert [row["row"] for row in found.exhibit["rows"]] == list(METHODS)
    first = found.exhibit["rows"][0]
    assert (first["requests"], first["prompts"]) == (30 * len(SEEDS), 30)
    assert all(set(column["measured"]["by_replicate"]) == set(map(str, SEEDS))
               for column in first["columns"].values() if isinstance(column.get("measured"), dict))  # fmt: skip
    assert {"statement", "status", "relation", "margin"} <= set(found.exhibit["claims"][0])
    assert found.command == f"python -m pipeline +experiment={EXPERIMENT}"


def test_a_result_has_the_date_of_its_last_job_and_the_revisions_of_all(sweep, job, tmp_path):
    replace(job, revision="abd").write(sweep / "0")
    os.utime(sweep / "0" / "job.json", (0, 0))
    keep(sweep, tmp_path)
    (found,) = read_results(tmp_path)
    last_s = max(path.stat().st_mtime for path in sweep.glob("*/job.json"))
    assert found.revisions == ("abc", "abd")
    assert found.date == f"{datetime.fromtimestamp(last_s, UTC):%Y-%m-%d}"


def test_jobs_are_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 2):
        JobResult("complete", number).write(tmp_path / str(number))
    assert [one.number for one in kept.finished_jobs(tmp_path)] == [2, 10]


def test_a_row_is_a_line_and_numbers_have_six_digits(sweep, tmp_path):
    text = keep(sweep, tmp_path).read_text()
    assert sum(line.startswith('   {"row": ') for line in text.splitlines()) == len(METHODS)
    assert len(text) < 60_000
    numbers = [cell["measured"]["value"] for row in json.loads(text)["exhibit"]["rows"]
               for cell in row["columns"].values() if isinstance(cell.get("measured"), dict)]  # fmt: skip
    assert all(number == float(f"{number:.6g}") for number in numbers)


def test_a_changed_file_is_named(sweep, tmp_path, monkeypatch):
    keep(sweep, tmp_path)
    (found,) = read_results(tmp_path)
    stale = replace(found, files={**FILES, "config": "0" * 12})
    assert stale.changes() == ["conf/config.yaml has changed"]
    assert replace(found, exhibit_digest="").changes() == ["the exhibit's columns, rows or claims have changed"]


def test_of_a_changed_file_no_second_change_is_told():
    result = KeptResult("synera/x", {}, {"config": "0" * 12}, "another", (), "2026-11-23", 1)
    assert result.changes() == ["conf/config.yaml has changed"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"status": "failed"}, f"1 of {JOBS} jobs have no result (0)"),
        ({"files": {"config": "0" * 12}}, "conf/config.yaml changed between its jobs"),
        ({"overrides": ("training.seed=0",)}, "is no experiment's"),
        ({"overrides": (f"+experiment={EXPERIMENT}", "policy.offload.budget=0.5")}, "by policy.offload.budget"),
    ],
)
def test_what_is_not_the_experiment_is_not_kept(sweep, job, tmp_path, change, problem):
    replace(job, **change).write(sweep / "0")
    with pytest.raises(KeptResultError) as error:
        keep(sweep, tmp_path)
    assert problem in str(error.value)
    assert not list(tmp_path.iterdir())


def test_other_values_of_what_the_experiment_sweeps_are_refused(sweep, job, tmp_path):
    """Fifteen jobs of fifteen, and one with a seed that the experiment does not name."""
    words = ["training.seed=7" if one == "training.seed=0" else one for one in job.overrides]
    replace(job, overrides=tuple(words)).write(sweep / "0")
    with pytest.raises(
        KeptResultError, match=r"job 0 chooses training\.seed=7, variant/synera/method=edge_centric, and no"
    ):
        keep(sweep, tmp_path)
    replace(job, overrides=read_result(sweep / "1").overrides).write(sweep / "0")
    with pytest.raises(KeptResultError, match=f"has {JOBS - 1} of the {JOBS} jobs"):
        keep(sweep, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_number_of_a_trial_is_not_an_override(sweep, job, tmp_path):
    replace(job, overrides=(*job.overrides, "+trial=3")).write(sweep / "0")
    assert keep(sweep, tmp_path).is_file()


def test_a_configuration_that_changed_since_the_run_asks_for_another_run(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(kept.sources, "changed_files", lambda files: iter([sources.FileChange("config")]))
    with pytest.raises(KeptResultError, match=r"conf/config.yaml has changed. Run it again: `python -m pipeline "):
        keep(sweep, tmp_path)


def test_jobs_that_name_no_files_are_refused(tmp_path):
    with pytest.raises(KeptResultError, match=r"does not say of which files .* `python -m pipeline \+experiment=x`"):
        kept.unchanged_files(tmp_path, [JobResult("complete", 0)], "+experiment=x")


def test_a_sweep_that_was_narrowed_lacks_jobs(sweep, tmp_path):
    few = tmp_path / "few"
    for number in range(3):
        read_result(sweep / str(number)).write(few / str(number))
    with pytest.raises(KeptResultError, match=f"has 3 of the {JOBS} jobs"):
        keep(few, tmp_path / "into")


def test_a_folder_of_nothing_is_refused(tmp_path):
    with pytest.raises(KeptResultError, match="no folder of a finished sweep or run"):
        keep(tmp_path, tmp_path / "into")


def test_a_run_that_left_no_artifact_is_refused(tmp_path):
    with pytest.raises(KeptResultError, match="ended without an artifact"):
        kept._run_exhibit(tmp_path, JobResult("complete"))


def test_a_file_that_is_no_result_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(KeptResultError, match=r"x.json is no kept result"):
        list(read_results(tmp_path))


def test_a_file_of_another_format_is_named(tmp_path):
    other = KeptResult("synera/x", {"title": "t"}, {"config": ""}, "d", (), "2026-11-23", 1, format=2)
    other.write(tmp_path)
    with pytest.raises(KeptResultError, match=r"x\.json has format 2, this code reads 1"):
        list(read_results(tmp_path))


def test_a_run_without_a_result_is_named_so(tmp_path):
    JobResult("failed").write(tmp_path)
    with pytest.raises(KeptResultError, match=r"the run ended without a result \(failed\)"):
        kept.finished_jobs(tmp_path)
