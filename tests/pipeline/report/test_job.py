"""A job from its records to the table, the figures, job.json and MLflow."""

import csv
import io
import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from pipeline.artifacts import manifest
from pipeline.artifacts.fingerprint import content_digest
from pipeline.artifacts.stage import Stage
from pipeline.report import job as report
from pipeline.report.comparison import compare_results
from pipeline.report.context import JobContext, StageRun
from pipeline.report.job_result import read_result
from pipeline.report.mlflow_logger import MlflowLogger
from pipeline.report.mlflow_stages import stage_experiment
from pipeline.report.mlflow_store import Tracking
from pipeline.report.records import RecordsError
from serving.metrics import definitions
from tests.pipeline.report.serve_artifact import drawn, request, write

pytestmark = pytest.mark.usefixtures("undrawn")

SECRET = "s3cret-value"
CONFIG = {
    "policy": {
        "_target_": "serving.policy.policy.Policy",
        "name": "synera",
        "draft": {"_target_": "serving.policy.slots.draft.WindowDraft", "k": 4},
        "offload": {
            "_target_": "serving.policy.slots.importance_offload.SyneraOffload",
            "budget": 0.2,
            "calibration": "share",
        },
        "lookahead": {"_target_": "serving.policy.slots.lookahead.NoLookahead"},
    },
    "model": {
        "device": {"timed_architecture": "tinyllama_1_1b"},
        "cloud": {"timed_architecture": "llama2_13b", "api_key": SECRET},
    },
    "hardware": {"cloud": {"chip": "rtx_a6000"}},
    "network": {"uplink_mbps": 3.9, "downlink_mbps": 4.8, "delay_ms": 40, "loss": 0.01},
    "seed": 7,
}


@pytest.fixture
def artifact(tmp_path):
    return drawn(tmp_path / "serve", n=12)


RESULT = {"loss": 0.5, "speed": {"tokens_per_s": 900}, "name": "small", "losses": [2.0, 1.0, 0.5], "threads": 2,
          "recipe": {"steps": 500}, "steps": 500}  # fmt: skip


def trained(folder: Path) -> StageRun:
    """A stage's artifact: a report, weights, and its record."""
    stage = Stage("device_model", "training.embedded_pair.stages.train", {"steps": 500, "hub_token": SECRET})
    folder.mkdir()
    (folder / "training.json").write_text(json.dumps(RESULT))
    (folder / "model.safetensors").write_bytes(bytes(64))
    manifest.write_manifest(stage, folder, 12.5)
    return StageRun(stage.name, stage.key, "train", folder, 12.5, True)


def context(tmp_path: Path, tracking: Tracking, **changes: object) -> JobContext:
    known: dict[str, object] = {
        "overrides": ("+policy=synera", "network=lte", f"model.cloud.api_key={SECRET}"),
        "choices": {"hardware": "jetson_orin", "network": "lte", "policy/draft": "window", "policy/offload": "synera"},
        "digest": "d1g3st",
        "revision": "abc",
        "versions": {"torch": "2.13.0"},
        "machine": {"cores": 2},
    }
    return JobContext(tmp_path / "job", tracking, CONFIG, **known | changes)  # type: ignore[arg-type]


OFF = Tracking(uri="none")


def test_the_line_of_a_chip_without_an_error_of_its_own_has_that_of_its_processor_held_out(tmp_path):
    evidence = "measured: fitted to 3 rows of 1 source, batch 1"
    timing = f"roofline of jetson_agx_orin_32gb in mode 30W, tinyllama_1_1b, fp16, transformers ({evidence})"
    folder = write(tmp_path / "serve", [request("r0", "dd", [0.1, 0.2])], timing={"device": timing})
    report.report_job(folder, context(tmp_path, OFF), file := io.StringIO())
    said = " ".join(file.getvalue().split())
    assert (
        f"({evidence}; with this processor held out 48 % off on 3 decodes; no row is of mode 30W or a prefill)" in said
    )


def test_the_table_shows_setup_and_results(artifact, tmp_path):
    file = io.StringIO()
    report.report_job(artifact, context(tmp_path, OFF), file)
    text = file.getvalue()
    for part in (
        "synera | jetson_orin | lte | 12 requests",
        "tinyllama_1_1b on 4 x orin 30W; time: roofline, derived",
        "llama2_13b on rtx_a6000",
        "3.9 Mbit/s up, 4.8 Mbit/s down, 40 ms delay, 1.0% lost",
        "draft window (k=4), offload synera (budget=0.2, calibration=share), lookahead NoLookahead",
        "seed 0, code abc, torch 2.13.0",
        "exact match 0.667, 95 % interval",
        "(budget 20.0 %)",
        "with the cloud's own token",
        "Pf 6 (Synera, Table 3)",
        "tokens: the embedded pair; time: emulated",
    ):
        assert part in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    assert SECRET not in text


def test_without_mlflow_table_figures_and_result_are_written(artifact, tmp_path, monkeypatch):
    monkeypatch.undo()  # draws
    done = report.report_job(artifact, context(tmp_path, OFF), io.StringIO())
    assert (done.ui_hint, done.result.run_id) == (None, None)
    assert read_result(tmp_path / "job") == done.result
    assert done.result.metrics["quality/mean"] == pytest.approx(2 / 3)
    assert [path.name for path in done.figures if path.exists()] == ["latency.png", "timeline.png"]
    assert not list(tmp_path.rglob("*.db"))


def test_a_job_that_is_reported_again_draws_nothing(artifact, tmp_path, monkeypatch):
    digest = content_digest(artifact, tmp_path / "memo")
    done = [report.report_job(artifact, context(tmp_path / "first", OFF), io.StringIO())]
    monkeypatch.delattr(report.figures, "draw_latency")
    done += [report.report_job(artifact, context(tmp_path / "second", OFF), io.StringIO())]
    drawn_files, copied_files = ([path.read_bytes() for path in one.figures] for one in done)
    assert drawn_files == copied_files
    assert content_digest(artifact, tmp_path / "memo") == digest


def test_a_job_whose_figures_are_interrupted_is_complete(artifact, tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(report.figures, "draw_latency", interrupt)
    with pytest.raises(KeyboardInterrupt):
        report.report_job(artifact, context(tmp_path, OFF), io.StringIO())
    assert read_result(tmp_path / "job").status == "complete"


def test_a_job_whose_figures_cannot_be_drawn_is_complete_and_says_so(artifact, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("no font")

    monkeypatch.setattr(report.figures, "draw_latency", fail)
    file = io.StringIO()
    done = report.report_job(artifact, context(tmp_path, OFF), file)
    assert "figures: could not draw them (ValueError: no font)" in file.getvalue()
    assert done.figures == ()
    assert read_result(tmp_path / "job") == done.result


@pytest.mark.parametrize(("mode", "num_lines"), [("line", 1), ("quiet", 0)])
def test_a_job_of_a_sweep_prints_one_line_and_leaves_its_report_in_a_file(artifact, tmp_path, mode, num_lines):
    file = io.StringIO()
    stage = replace(trained(tmp_path / "device_model"), cached=False)
    sweep = tmp_path / "sweep"
    asked = context(tmp_path, OFF, number=3, sweep=sweep, report=mode, stages=(stage,))
    done = report.report_job(artifact, asked, file)
    lines = file.getvalue().splitlines()
    assert len(lines) == num_lines
    assert (tmp_path / "job" / "report.txt").read_text() == done.text
    for line in lines:
        assert line.startswith("job 3, synera: quality 0.667, TTFT ")
        assert line.endswith(f"; 12.5 s to build device_model; {tmp_path / 'job' / 'report.txt'}")


@pytest.mark.usefixtures("every_kind")
@pytest.mark.parametrize(
    ("mode", "kinds"), [("full", {".png", ".pdf", ".svg"}), ("line", {".png"}), ("quiet", {".png"})]
)
def test_a_job_of_a_sweep_draws_no_files_for_print(artifact, tmp_path, tracking, monkeypatch, mode, kinds):
    monkeypatch.undo()  # draws
    done = report.report_job(artifact, context(tmp_path, tracking, report=mode), io.StringIO())
    assert {path.suffix for path in (tmp_path / "job" / "figures").iterdir()} == kinds
    assert all(path.is_file() for path in done.figures)


def test_mlflow_gets_the_run_with_everything_but_secrets(artifact, tmp_path, tracking):
    file = io.StringIO()
    stage = trained(tmp_path / "device_model")
    done = report.report_job(artifact, context(tmp_path, tracking, stages=(stage,)), file)
    client, experiment_id = tracking.connect()
    job = client.get_run(done.result.run_id)
    page = f"/#/experiments/{experiment_id}/runs/{done.result.run_id}?workflowType=machine_learning"
    assert file.getvalue().splitlines()[-1].endswith(page)
    assert job.info.status == "FINISHED"
    assert job.info.run_name == "synera network=lte model.cloud.api_key=***"
    assert job.data.params == {
        "policy": "synera", "hardware": "jetson_orin", "network": "lte", "policy/draft": "window",
        "policy/offload": "synera", "seed": "7", "model.cloud.api_key": "***",
    }  # fmt: skip
    assert {key: job.data.tags[key] for key in job.data.params} == job.data.params
    assert "budget: 0.2" in next((tmp_path / "mlflow").rglob("config.yaml")).read_text()
    assert job.data.metrics["latency/tbt_s/p99"] == done.summary["latency/tbt_s/p99"]
    shown = [key for key in job.data.metrics if not key.startswith("series/")]
    assert shown == [key for key in definitions.HEADLINE if key in shown]
    assert job.data.tags["tandem.digest"] == "d1g3st"
    found = {item.path for item in client.list_artifacts(job.info.run_id)}
    assert found == {
        "records", "figures", "config.yaml", "overrides.txt", "conf_files.json", "environment.json", "report.txt",
        "metrics.csv",
    }  # fmt: skip
    assert len(client.list_artifacts(job.info.run_id, "records")) == 4
    environment = json.loads(next((tmp_path / "mlflow").rglob("environment.json")).read_text())
    assert environment["seeds"]["seed"] == 7
    assert environment["machine"] == {"cores": 2}


def test_every_metric_is_in_a_file_with_its_unit(artifact, tmp_path, tracking):
    done = report.report_job(artifact, context(tmp_path, tracking), io.StringIO())
    rows = list(csv.DictReader(io.StringIO(next((tmp_path / "mlflow").rglob("metrics.csv")).read_text())))
    assert {row["metric"]: float(row["value"]) for row in rows} == done.summary.metrics()
    assert {row["unit"] for row in rows if row["metric"].startswith("latency/")} == {"s"}


def test_a_served_run_has_series_over_virtual_time(artifact, tmp_path, tracking):
    done = report.report_job(artifact, context(tmp_path, tracking, started_s=1000.0), io.StringIO())
    client, _ = tracking.connect()
    points = client.get_metric_history(done.result.run_id, "series/tokens_per_s")
    ends_s = [one.ended_s for one in done.records.requests]
    assert len(points) == 60
    assert [points[-1].step, points[-1].timestamp] == [round(1000 * max(ends_s)), int(1000 * (1000.0 + max(ends_s)))]
    tokens = sum(one.num_tokens for one in done.records.requests)
    assert sum(point.value for point in points) * max(ends_s) / 60 == pytest.approx(tokens)
    for name, lane in (("active_requests", None), ("queued_requests", "queue")):
        values = [point.value for point in client.get_metric_history(done.result.run_id, f"series/{name}")]
        spans = [one for one in done.records.timeline if one.lane == lane]
        waited_s = sum(one.end_s - one.start_s for one in spans) if lane else sum(ends_s)
        assert sum(values) * max(ends_s) / 60 == pytest.approx(waited_s)


def test_a_stage_is_a_run_with_its_lineage_its_times_and_its_curves(artifact, tmp_path, tracking):
    stage = trained(tmp_path / "device_model")
    done = report.report_job(artifact, context(tmp_path, tracking, stages=(stage,)), io.StringIO())
    client, _ = tracking.connect()
    (run,) = client.search_runs([stage_experiment(tracking)])
    assert run.info.run_name == stage.key
    assert run.data.params == {"steps": "500", "hub_token": "***"}
    numbers = {"build_s": 12.5, "training/loss": 0.5, "training/speed/tokens_per_s": 900.0, "training/losses": 0.5}
    assert run.data.metrics == numbers
    built_ms = 1000 * datetime.fromisoformat(manifest.read_manifest(stage.path).built).timestamp()
    assert (run.info.start_time, run.info.end_time) == (built_ms - 12500, built_ms)
    losses = client.get_metric_history(run.info.run_id, "training/losses")
    assert [(one.step, one.value, one.timestamp) for one in losses] == [
        (0, 2.0, built_ms - 12500), (1, 1.0, built_ms - 6250), (2, 0.5, built_ms)
    ]  # fmt: skip
    assert run.data.tags["tandem.target"] == "training.embedded_pair.stages.train"
    assert [item.path for item in client.list_artifacts(run.info.run_id, "artifact")] == ["artifact/training.json"]
    files = json.loads(next((tmp_path / "mlflow").rglob("files.json")).read_text())
    assert files["model.safetensors"]["nbytes"] == 64
    assert client.get_run(done.result.run_id).data.tags["tandem.stages"] == run.info.run_id


def test_a_trained_model_and_its_corpus_are_inputs_of_the_job(artifact, tmp_path, tracking):
    corpus = Stage("corpus", "training.embedded_pair.corpus.build", {"seed": 0})
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.jsonl").write_text("{}\n")
    manifest.write_manifest(corpus, folder, 1.0)
    made = StageRun("corpus", corpus.key, "train", folder, 1.0, False)
    model = replace(trained(tmp_path / "device_model"), cached=False, inputs={"corpus": corpus.key})
    done = report.report_job(artifact, context(tmp_path, tracking, stages=(made, model)), io.StringIO())
    client, experiment_id = tracking.connect()
    job = client.get_run(done.result.run_id)
    (found,) = client.search_logged_models([experiment_id])
    assert [one.model_id for one in job.inputs.model_inputs] == [found.model_id]
    assert found.name == model.key
    assert [item.path for item in client.list_logged_model_artifacts(found.model_id)] == [
        "model.safetensors", "training.json"
    ]  # fmt: skip
    source = client.get_run(found.source_run_id)
    assert source.info.run_name == model.key
    ((data,),) = ([one.dataset for one in source.inputs.dataset_inputs],)
    assert (data.name, data.digest) == ("corpus", corpus.digest[:12])


def test_what_was_served_is_a_data_set_of_the_run(artifact, tmp_path, tracking):
    data = {"_target_": "serving.workload.datasets.gsm8k.GSM8K", "split": "test", "api_key": SECRET}
    args = {"setup": {"workload": {"dataset": data, "path": None, "num_prompts": 12}}}
    stage = Stage("serve", "serving.stages.serve", args)
    manifest.write_manifest(stage, artifact, 1.0)
    served = StageRun("serve", stage.key, "serve", artifact, 1.0, False)
    done = report.report_job(artifact, context(tmp_path, tracking, stages=(served,)), io.StringIO())
    client, _ = tracking.connect()
    (used,) = client.get_run(done.result.run_id).inputs.dataset_inputs
    assert (used.dataset.name, json.loads(used.dataset.profile)) == ("GSM8K", {"num_prompts": 12})
    assert used.tags[0].value == "serving"
    assert SECRET not in used.dataset.source


def test_no_secret_reaches_any_file_of_the_report(artifact, tmp_path, tracking, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "environment-value")
    stage = replace(trained(tmp_path / "device_model"), cached=False)
    report.report_job(artifact, context(tmp_path, tracking, stages=(stage,)), io.StringIO())
    report.report_failure(OSError(f"refused by http://me:{SECRET}@host"), context(tmp_path, tracking), io.StringIO())
    written = [*(tmp_path / "job").rglob("*"), *(tmp_path / "mlflow").rglob("*"), tmp_path / "mlflow.db"]
    contents = b"".join(path.read_bytes() for path in written if path.is_file())
    assert b"llama2_13b" in contents
    assert SECRET.encode() not in contents
    assert b"environment-value" not in contents


def test_a_store_that_fails_loses_no_result(artifact, tmp_path):
    (tmp_path / "file").write_text("")
    file = io.StringIO()
    done = report.report_job(artifact, context(tmp_path, Tracking(uri=f"sqlite:///{tmp_path}/file/x.db")), file)
    assert done.ui_hint is None
    assert "exact match 0.667" in file.getvalue()
    assert f"MLflow: could not log to sqlite:///{tmp_path}/file/x.db" in file.getvalue()
    assert read_result(tmp_path / "job").status == "complete"


@pytest.mark.parametrize(("problem", "status"), [(OSError("disk full"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_a_run_that_is_logged_in_part_is_not_left_running(artifact, tmp_path, tracking, monkeypatch, problem, status):
    def fail(*_):
        raise problem

    monkeypatch.setattr(MlflowLogger, "log_files", fail)
    stage = replace(trained(tmp_path / "device_model"), cached=False)
    with nullcontext() if status == "FAILED" else pytest.raises(KeyboardInterrupt):
        report.report_job(artifact, context(tmp_path, tracking, stages=(stage,)), io.StringIO())
    with nullcontext() if status == "FAILED" else pytest.raises(KeyboardInterrupt):
        report.report_job(artifact, context(tmp_path, tracking), io.StringIO())
    client, experiment_id = tracking.connect()
    runs = client.search_runs([experiment_id, stage_experiment(tracking)])
    assert [one.info.status for one in runs] == [status] * 2


def test_a_failed_job_is_recorded_with_its_reason(tmp_path, tracking):
    failed = report.report_failure(ValueError("llama2_70b does not fit"), context(tmp_path, tracking), io.StringIO())
    run = tracking.connect()[0].get_run(failed.run_id)
    assert (run.info.status, run.data.tags["tandem.error"]) == ("FAILED", "llama2_70b does not fit")
    assert read_result(tmp_path / "job") == failed
    assert failed.error == "llama2_70b does not fit"


def test_a_damaged_record_is_refused(artifact, tmp_path):
    (artifact / "requests.parquet").write_bytes(b"PAR1")
    with pytest.raises(RecordsError, match="cannot be read as the record"):
        report.report_job(artifact, context(tmp_path, OFF), io.StringIO())


def test_the_table_names_the_source_of_tokens_and_time(tmp_path):
    file, said = io.StringIO(), {"runtime": "emulated", "runtime_described": "time from the chips"}
    report.report_job(write(tmp_path / "x", [request("a", ["cloud"], [0.5])], **said), context(tmp_path, OFF), file)
    assert "emulated: time from the chips" in file.getvalue()


def test_requests_that_share_one_prompt_are_resampled_one_by_one(tmp_path):
    rows = [request(f"{n}", ["cloud"], [0.5], prompt_id="p", quality=float(n > 1)) for n in range(5)]
    done = report.print_report(write(tmp_path / "x", rows), context(tmp_path, OFF), io.StringIO())
    assert "0.600, 95 % interval 0.200 to 1.000" in " ".join(done.text.split())


def test_a_job_and_the_table_of_its_sweep_have_one_interval(tmp_path):
    rows = [request(f"{n}", ["cloud"], [0.5], prompt_id=f"p{n % 7}", quality=n % 3 / 2) for n in range(20)]
    done = report.print_report(write(tmp_path / "x", rows), context(tmp_path, OFF), io.StringIO())
    (row,) = compare_results([done.result])
    assert f"95 % interval {row.quality.low:.3f} to {row.quality.high:.3f}" in " ".join(done.text.split())


def test_unknown_energy_cost_and_quality_are_shown_as_unknown(tmp_path):
    lone = request("a", ["cloud"], [0.5])
    file = io.StringIO()
    report.report_job(
        write(tmp_path / "lone", [lone], packing_factor=None, lossless=True), context(tmp_path, OFF), file
    )
    text = " ".join(file.getvalue().split())
    for part in (
        "quality not measured",
        "drafts none",
        "- J a token",
        "for want of a packing factor",
        "lossless every",
    ):
        assert part in text


HEAT = {
    "architecture": "tinyllama_1_1b", "cached_tokens": 512, "cold_s": 0.1, "sustained_s": 0.125,
    "curve": "80% of the cold speed after 600 s of load (measured: by us)", "run": "cold",
}  # fmt: skip


def test_the_report_names_radio_and_sustained_speed_or_says_that_they_are_unknown(tmp_path):
    rows = [request("a", ["device"] * 4, [0.1, 0.2, 0.3, 0.4], device_energy_j=8.0, radio_energy_j=2.0)]
    server = HEAT | {"architecture": "llama2_13b", "cold_s": 0.0405, "sustained_s": None, "curve": None}
    said = {"radios": ["3.51 J a MB up", "unknown"], "heat": {"pixel_7": HEAT, "rtx_a6000": server}}
    file = io.StringIO()
    report.report_job(write(tmp_path / "x", rows, **said), context(tmp_path, OFF), file)
    text = " ".join(file.getvalue().split())
    for part in (
        "radio 3.51 J a MB up", "radio unknown",
        "2.00 J a token on the device, 0.500 J in its radio, 2.50 J together; ",
        "pixel_7: tinyllama_1_1b decodes a token behind 512 in 100.0 ms cold, 125.0 ms sustained: 80% of the cold "
        "speed after 600 s of load (measured: by us); this run: cold",
        "rtx_a6000: llama2_13b decodes a token behind 512 in 40.5 ms cold; sustained: unknown",
    ):  # fmt: skip
        assert part in text, text


def test_a_radio_that_is_not_known_is_named_so(tmp_path):
    rows = [request("a", ["device"], [0.1], device_energy_j=8.0)]
    file = io.StringIO()
    report.report_job(write(tmp_path / "x", rows), context(tmp_path, OFF), file)
    assert "8.00 J a token on the device, its radio unknown; " in " ".join(file.getvalue().split())
