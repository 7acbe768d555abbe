import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.artifacts import manifest
from pipeline.artifacts.stage import Stage
from pipeline.command.sweep import status_parts
from pipeline.errors import ConfigError
from pipeline.report import comparison, job_result
from pipeline.report.choices import check_baseline, differing_overrides
from pipeline.report.comparison import ComparisonRow, compare_jobs
from pipeline.report.context import JobContext
from pipeline.report.export.tables import comparison_table
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import Tracking
from pipeline.report.records import Records
from pipeline.report.statistics import ConfidenceInterval
from pipeline.report.summary import summarise
from pipeline.report.sweep_note import SweepNote, read_note
from pipeline.report.table import plain_lines
from tests.pipeline.report.serve_artifact import drawn, request, write


def finished(sweep: Path, number: int, artifact: Path, *overrides: str) -> None:
    records = Records.read(artifact)
    metrics = summarise(records).metrics()
    JobResult(
        "complete", number, records.meta.policy, overrides, "d1", str(artifact), False, "exact match", metrics, "run"
    ).write(sweep / str(number))


def mean(interval: ConfidenceInterval | None) -> float | None:
    return interval and interval.mean


@pytest.fixture
def sweep(tmp_path):
    """Three complete jobs, one that failed, one killed while it served, and one before it wrote anything."""
    folder = tmp_path / "sweep"
    for number, (policy, share, right) in enumerate(
        [("edge_centric", 0, 0.25), ("synera", 0.2, 0.5), ("synera", 0.8, 1)]
    ):
        artifact = drawn(tmp_path / f"serve{number}", policy, share, right=right, n=24)
        finished(folder, number, artifact, f"+policy={policy}", f"policy.offload.budget={share}", "network=lte")
    JobResult("failed", 3, "sled", ("policy=sled", "network=lte"), error="does not fit:\n  70 GB").write(folder / "3")
    JobResult("running", 10, "wisp", ("policy=wisp", "network=lte")).write(folder / "10")
    (folder / "4" / ".hydra").mkdir(parents=True)
    (folder / "4" / ".hydra" / "overrides.yaml").write_text("- policy=hat\n- network=lte\n- cloud.api_key=s3cret\n")
    (folder / "figures").mkdir()
    return folder


def test_rows_are_in_job_order_with_the_result_of_each_job(sweep):
    rows = compare_jobs(sweep)
    assert [row.result.number for row in rows] == [0, 1, 2, 3, 4, 10]
    assert [row.problem for row in rows] == [None] * 3 + ["failed: does not fit: 70 GB"] + [comparison.NO_RESULT] * 2
    assert rows[4].result.overrides[-1] == "cloud.api_key=***"


def test_jobs_that_another_command_left_in_the_folder_do_not_count(tmp_path):
    words = [["policy=a", "seed=0"], ["policy=a", "seed=1"], ["policy=b", "seed=0"], ["policy=b", "seed=1"]]
    for number, own in enumerate(words):
        JobResult("complete", number, overrides=tuple(own)).write(tmp_path / str(number))
    SweepNote(jobs=[["seed=0", "+policy=a", "report=quiet"], ["seed=0", "+policy=b"]]).write(tmp_path)
    assert [one.number for one in comparison.read_jobs(tmp_path)] == [0]
    JobResult("complete", 1, overrides=("stages.fit.rounds=2",)).write(tmp_path / "1")
    assert [one.number for one in comparison.read_jobs(tmp_path)] == [0], "it has no setting of this command's job"
    assert status_parts(tmp_path, read_note(tmp_path))[0].startswith("2 jobs: 1 complete, 1 not begun;")
    JobResult("running", 1).write(tmp_path / "1")
    assert [one.number for one in comparison.read_jobs(tmp_path)] == [0, 1], "it was killed before it noted any"
    SweepNote().write(tmp_path)
    assert len(comparison.read_jobs(tmp_path)) == 4, "a search lists no jobs"


def test_jobs_that_have_not_begun_count_as_jobs_of_the_sweep(tmp_path):
    words = [["policy=a"], ["policy=b"], ["policy=c"]]
    SweepNote(jobs=words).write(tmp_path)
    JobResult("running", 0, overrides=tuple(words[0])).write(tmp_path / "0")
    file = io.StringIO()
    rows = comparison.print_table(tmp_path, file)
    assert "0 of 3 jobs complete" in file.getvalue()
    assert "**0 of 3 jobs complete**" in comparison.comparison_markdown(rows, comparison.num_planned(tmp_path))


QUALITY, TBT = "quality/mean", "latency/tbt_s/mean"
SERVICE, COST = "latency/service_s_per_token/mean", "cost/usd_per_million_tokens"


def difference(row: ComparisonRow, key: str = QUALITY) -> ConfidenceInterval | None:
    return row.differences[key].interval if key in row.differences else None


def test_quality_latency_and_cost_are_paired_with_the_first_job(sweep):
    rows = compare_jobs(sweep)
    assert mean(rows[0].quality) == 0.25
    assert (rows[0].baseline, difference(rows[0])) == (None, None)
    assert mean(difference(rows[1])) == 0.25
    assert mean(difference(rows[2])) == 0.75
    assert 0 < difference(rows[1]).low < 0.25 < difference(rows[1]).high
    for row in rows[1:3]:
        assert row.baseline == 0
        for key in (TBT, SERVICE, COST):
            expected = row.result.metrics[key] - rows[0].result.metrics[key]
            assert mean(difference(row, key)) == pytest.approx(expected)
            assert difference(row, key).low <= expected <= difference(row, key).high
    assert compare_jobs(sweep) == rows


def test_p_values_are_adjusted_for_all_tests_of_the_sweep(sweep):
    rows = compare_jobs(sweep)
    p_values = {(place, key): one.p for place, row in enumerate(rows) for key, one in row.differences.items()}
    assert len(p_values) == 8
    assert p_values[2, QUALITY] == pytest.approx(8 / 10000)
    assert 0.01 < p_values[1, QUALITY] < 0.2
    assert difference(rows[1]).low > 0
    text = "\n".join(plain_lines(comparison.comparison_parts(rows)))
    assert "adjusted by Holm's method for the 8 tests" in " ".join(text.split())


def test_jobs_on_two_corpora_are_not_paired_though_their_prompts_have_the_same_ids(tmp_path):
    """Each corpus of the embedded pair has a prompt test-0."""
    data = {"_target_": "serving.workload.datasets.tiny.TinyTasks", "corpus": {"_stage_": "corpus"}}
    for number, seed in enumerate((0, 0, 3)):
        artifact = drawn(tmp_path / f"serve{number}", right=(1 + number) / 4, n=24)
        corpus = Stage("corpus", "training.embedded_pair.corpus.build", {"seed": seed})
        stage = Stage("serve", "serving.stages.serve", {"setup": {"workload": {"dataset": data}}, "run": number},
                      inputs={"corpus": corpus})  # fmt: skip
        manifest.write_manifest(stage, artifact, 1.0)
        finished(tmp_path / "sweep", number, artifact, "+policy=sled", f"training.seed={seed}", f"k={number}")
    rows = compare_jobs(tmp_path / "sweep")
    assert [row.prompts for row in rows] == [0, 0, 1]
    assert [bool(row.differences) for row in rows] == [False, True, False]
    table = comparison_table(rows, "two corpora", "k=0")
    assert table.against == {1: 0}
    assert [row.group for row in table.rows] == ["prompts of job 0", "prompts of job 0", "prompts of job 2"]


@pytest.mark.parametrize("name", ["synera", "0.80", "budget=0.8"])
def test_the_baseline_is_named_by_a_policy_or_a_value(sweep, name):
    rows = compare_jobs(sweep, name)
    assert [row.baseline for row in rows[:3]] == ([1, None, None] if name == "synera" else [2, 2, None])


def test_a_job_is_compared_with_the_baseline_nearest_to_it(tmp_path):
    for number, (policy, network) in enumerate([("sled", "lte"), ("sled", "wifi"), ("hat", "wifi"), ("hat", "lte")]):
        artifact = drawn(tmp_path / f"serve{number}", policy, n=8)
        finished(tmp_path / "sweep", number, artifact, f"+policy={policy}", f"network={network}")
    assert [row.baseline for row in compare_jobs(tmp_path / "sweep", "sled")] == [None, None, 1, 0]


def test_a_baseline_without_a_result_is_said_plainly(sweep):
    file = io.StringIO()
    rows = comparison.print_table(sweep, file, "sled")
    assert "no complete job is sled: there are no differences" in file.getvalue()
    assert all(not row.differences for row in rows)


def test_a_sweep_of_which_only_jobs_of_the_baseline_are_complete_has_nothing_to_compare(tmp_path):
    for number, network in enumerate(("lte", "wifi")):
        artifact = drawn(tmp_path / f"serve{number}", "sled", n=8)
        finished(tmp_path / "sweep", number, artifact, "+policy=sled", f"network={network}")
    file = io.StringIO()
    rows = comparison.print_table(tmp_path / "sweep", file, "sled")
    assert [(row.is_baseline, row.baseline) for row in rows] == [(True, None)] * 2
    assert "every complete job is sled: there is nothing to compare it with" in file.getvalue()
    assert "no complete job" not in file.getvalue()


def test_a_baseline_that_no_job_is_is_refused_with_the_values_that_jobs_differ_in():
    jobs = [["+policy=sled", "network=lte"], ["+policy=hat", "network=lte"]]
    with pytest.raises(ConfigError, match=r"baseline=synera: no job .* differ in policy=sled, policy=hat; name one"):
        check_baseline("synera", jobs)
    with pytest.raises(ConfigError, match="no job of this sweep is that"):
        check_baseline("lte", jobs)
    check_baseline("hat", jobs)
    check_baseline("policy=hat", jobs)
    check_baseline("synera", [["+experiment=a"], ["+experiment=b"]])


def test_the_best_of_each_column_and_the_pareto_rows_are_marked(sweep):
    rows = compare_jobs(sweep)
    metrics = [row.result.metrics for row in rows[:3]]
    fastest = min(range(3), key=lambda place: metrics[place][TBT])
    assert [QUALITY in row.best for row in rows] == [False, False, True, False, False, False]
    assert [place for place, row in enumerate(rows) if TBT in row.best] == [fastest]
    assert not any("offloading/token_share" in row.best for row in rows)
    assert rows[0].pareto == (TBT, SERVICE, COST)
    assert set(rows[2].pareto) == {TBT, SERVICE, COST}
    text = "\n".join(plain_lines(comparison.comparison_parts(rows)))
    assert "1.000 [1.000, 1.000]*  TBT, service, cost" in text
    assert "no job with the same prompts has a higher quality" in " ".join(text.split())


def test_a_dominated_job_is_not_pareto_optimal(tmp_path):
    for number, right in enumerate((0.5, 0.9)):
        artifact = drawn(tmp_path / f"serve{number}", "synera", 0.5, right=right, n=24)
        finished(tmp_path / "sweep", number, artifact, f"seed={number}")
    rows = compare_jobs(tmp_path / "sweep")
    assert [row.pareto for row in rows] == [(), (TBT, SERVICE, COST)]


def test_jobs_with_other_prompts_are_not_ranked_against_each_other(sweep, tmp_path):
    scored = [request(name, ["cloud"], [1.0], quality=1.0) for name in "abc"]
    finished(sweep, 2, write(tmp_path / "other", scored), "policy=synera")
    rows = compare_jobs(sweep)
    assert [QUALITY in row.best for row in rows[:3]] == [False, True, False]
    assert rows[2].pareto == ()
    assert [row.prompts for row in rows] == [0, 0, 1, None, None, None]


def test_slo_violations_are_a_column_where_a_class_is_set(sweep, tmp_path):
    assert "viol." not in "\n".join(plain_lines(comparison.comparison_parts(compare_jobs(sweep))))
    promised = [
        request(name, ["cloud"] * 2, [1.0, 1.0 + gap_s], quality=1.0) | {"slo": "fast", "slo_tokens_per_s": 1.5}
        for name, gap_s in (("a", 0.1), ("b", 0.9), ("c", 0.9), ("d", 0.1))
    ]
    finished(sweep, 2, write(tmp_path / "promised", promised), "policy=synera")
    lines = plain_lines(comparison.comparison_parts(compare_jobs(sweep)))
    (heading,) = (line for line in lines if "viol. %" in line)
    assert any(line.startswith("2") and "50.0" in line for line in lines[lines.index(heading) :])


def test_the_comparison_is_markdown_too(sweep):
    text = comparison.comparison_markdown(compare_jobs(sweep))
    assert "**3 of 6 jobs complete**" in text
    assert "| **1.000 [1.000, 1.000]** | TBT, service, cost |" in text
    assert "**Difference from job 0 (edge_centric, 0)**" in text
    assert "Holm" in text


def test_other_prompts_are_not_paired(sweep, tmp_path):
    scored = [request(name, ["cloud"], [1.0], quality=1.0) for name in "abc"]
    finished(sweep, 1, write(tmp_path / "other", scored), "policy=synera")
    row = compare_jobs(sweep)[1]
    assert mean(row.quality) == 1.0
    assert (row.baseline, row.differences) == (0, {})


def test_deleted_records_cost_only_the_interval(sweep, tmp_path):
    (tmp_path / "serve1" / "requests.parquet").unlink()
    row = compare_jobs(sweep)[1]
    assert (row.problem, row.quality) == (None, None)
    assert row.result.metrics["quality/mean"] == 0.5


def test_jobs_without_records_are_not_ranked_against_each_other(tmp_path):
    for number, right in enumerate((0.5, 0.9)):
        artifact = drawn(tmp_path / f"serve{number}", "synera", 0.5, right=right, n=8)
        finished(tmp_path / "sweep", number, artifact, f"workload={number}")
        (artifact / "requests.parquet").unlink()
    assert [(row.best, row.pareto) for row in compare_jobs(tmp_path / "sweep")] == [(frozenset(), ())] * 2


def test_jobs_are_labelled_by_the_overrides_that_differ():
    jobs = [["+policy=sled", "network=lte", "seed=1"], ["policy=synera", "network=lte", "seed=1", "a.budget=0.2"]]
    assert differing_overrides(jobs) == [{"policy": "sled", "budget": "-"}, {"policy": "synera", "budget": "0.2"}]


def test_labels_are_the_shortest_distinct_ends_of_option_names():
    jobs = [["a.device.mode=1", "a.cloud.mode=2", "b.n=1"], ["a.device.mode=3", "a.cloud.mode=4", "b.n=2"]]
    assert list(differing_overrides(jobs)[0]) == ["device.mode", "cloud.mode", "n"]
    assert list(differing_overrides([["mode=1", "a.mode=1"], ["mode=2", "a.mode=2"]])[0]) == ["mode", "a.mode"]


def test_the_table_fits_and_holds_every_job(sweep):
    file = io.StringIO()
    comparison.print_table(sweep, file)
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert "3 of 6 jobs complete" in text
    assert "0.250 [0.083, 0.417]" in text
    assert "failed: does not fit: 70 GB" in text
    assert text.count(comparison.NO_RESULT) == 2


def test_the_file_has_every_metric_and_bound(sweep):
    path = comparison.write_csv(compare_jobs(sweep), sweep / "comparison.csv")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["status"] for row in rows] == ["complete"] * 3 + ["failed", "running", "running"]
    assert rows[1]["budget"] == "0.2"
    assert float(rows[1]["difference quality/mean low"]) < float(rows[1]["difference quality/mean mean"])
    assert 0 < float(rows[1]["difference quality/mean p (Holm)"]) < 1
    assert (rows[1]["baseline"], rows[2]["pareto"]) == ("0", f"{TBT} {SERVICE} {COST}")
    assert "quality/mean" in rows[2]["best"].split()
    assert float(rows[2]["latency/tbt_s/mean"]) > 0
    assert rows[3]["problem"] == "failed: does not fit: 70 GB"


def test_a_tradeoff_groups_points_by_names_and_labels_them_by_numbers(sweep):
    assert [(point.group, point.label) for point in comparison.tradeoff_points(compare_jobs(sweep))] == [
        ("edge_centric", "0"), ("synera", "0.2"), ("synera", "0.8")
    ]  # fmt: skip
    rows = [replace(row, choices={"network": "lte", "budget": "1"}) for row in compare_jobs(sweep)[:1]]
    assert comparison.tradeoff_points(rows)[0].group == "edge_centric, lte"


def test_the_secrets_of_a_recorded_job_are_masked(tmp_path):
    overrides = ("policy=sled", "a.token=s3cret")
    context = JobContext(tmp_path, Tracking(), {"policy": {"name": "sled"}}, overrides, number=2)
    job_result.running_result(context).write(tmp_path)
    assert job_result.read_result(tmp_path) == JobResult("running", 2, "sled", ("policy=sled", "a.token=***"))


def test_a_complete_job_of_newer_code_is_complete(sweep):
    path = sweep / "0" / "job.json"
    before = job_result.read_result(sweep / "0")
    path.write_text(json.dumps({**json.loads(path.read_text()), "new": 1}))
    assert before.status == "complete"
    assert job_result.read_result(sweep / "0") == before


def test_an_empty_sweep_folder_has_no_jobs(tmp_path):
    assert job_result.read_result(tmp_path) is None


def test_jobs_that_served_nothing_have_no_table(tmp_path):
    """A search for a capacity: its exhibit has the figures. What failed is named."""
    for number, policy in enumerate(("cloud_centric", "edge_centric")):
        JobResult("complete", number, policy, (f"policy={policy}",)).write(tmp_path / str(number))
    assert comparison.comparison_parts(compare_jobs(tmp_path)) == ["2 of 2 jobs complete"]
    JobResult("failed", 2, "sled", ("policy=sled",), error="no memory").write(tmp_path / "2")
    said, table = comparison.comparison_parts(compare_jobs(tmp_path))
    assert said == "2 of 3 jobs complete"
    assert "failed: no memory" in str(table)
