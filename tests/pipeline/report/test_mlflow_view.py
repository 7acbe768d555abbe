"""Pages of the MLflow UI: a sweep's view and description, and the command that opens them."""

import json
from dataclasses import replace

import pytest

from pipeline.command import main
from pipeline.errors import UserError
from pipeline.report import mlflow_ui, mlflow_view
from pipeline.report.comparison import ComparisonRow
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_logger import MlflowLogger, select_numbers
from pipeline.report.mlflow_store import VALUE_CHARS, Tracking


def row(number: int, policy: str, **metrics: float) -> ComparisonRow:
    words = (f"policy={policy}", "network=lte", f"outputs=/tmp/{number}")
    found = {key.replace("__", "/"): value for key, value in metrics.items()}
    return ComparisonRow(JobResult("complete", number, policy, words, metrics=found), {"policy": policy}, prompts=0)


ROWS = [
    row(0, "synera", quality__mean=0.5, latency__tbt_s__mean=0.02, cost__usd_per_million_tokens=0.001),
    row(1, "sled", quality__mean=0.7, latency__tbt_s__mean=0.03, cost__usd_per_million_tokens=0.001),
    row(2, "hat", quality__mean=0.7, latency__tbt_s__mean=0.04, cost__usd_per_million_tokens=0.001),
]


def test_the_view_of_a_sweep_has_what_differs_and_the_headline_metrics(tracking):
    logger = MlflowLogger.open(tracking)
    page = mlflow_view.save_view(logger, "0123456789abcdef", "policy=synera,sled,hat", ROWS)
    assert page.endswith("?workflowType=machine_learning&viewStateShareKey=0123456789ab")
    tags = logger.client.get_experiment(logger.experiment_id).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    view = json.loads(tags["mlflow.sharedViewState.0123456789ab"])
    state = json.loads(view["state"])
    assert view["name"] == "policy=synera,sled,hat"
    assert state["selectedColumns"] == [
        "params.`policy`", "metrics.`quality/mean`", "metrics.`latency/tbt_s/mean`",
        "metrics.`cost/usd_per_million_tokens`",
    ]  # fmt: skip
    cards = state["compareRunCharts"]
    sections = {section["uuid"] for section in state["compareRunSections"]}
    assert {card["metricSectionId"] for card in cards} == sections
    assert (cards[0]["type"], cards[0]["showDifferencesOnly"]) == ("DIFFERENCE", True)
    assert next(card["metricKey"] for card in cards if card["type"] == "BAR") == "quality/mean"


def test_a_description_says_which_job_is_best_and_why():
    note = mlflow_view.sweep_note(ROWS, "r1", ["preview/tradeoff.png"])
    assert note.startswith(
        "**Job 0** (policy=synera) has the lowest mean TBT (20.0 ms). "
        "**Job 1** (policy=sled) has the highest quality (0.700, as job 2)."
    )
    assert "cost" not in note.partition("\n")[0]
    assert "| 1 | sled |" in note
    assert note.endswith("![preview/tradeoff.png](get-artifact?path=preview/tradeoff.png&run_uuid=r1)")


@pytest.mark.parametrize("prompts", [1, None])
def test_a_description_names_no_best_job_across_different_prompts(prompts):
    note = mlflow_view.sweep_note([*ROWS, replace(row(3, "wisp", quality__mean=0.9), prompts=prompts)], "r1", [])
    assert note.startswith("No best job is named: the jobs served different prompts, or their records are gone.\n")


def test_a_long_comparison_is_cut_to_what_a_tag_may_hold():
    note = mlflow_view.sweep_note([row(n, "sled", quality__mean=n / 300) for n in range(300)], "r1", ["a.png"])
    assert len(note) <= VALUE_CHARS
    assert "comparison.md" in note
    assert note.endswith("(get-artifact?path=a.png&run_uuid=r1)")


def test_a_sweep_without_results_has_a_description():
    failed = ComparisonRow(JobResult("failed", 0, "bad", error="it broke"), {})
    assert mlflow_view.sweep_note([failed], "r1", []).startswith("**0 of 1 jobs complete**")
    assert mlflow_view.sweep_note([], "r1", []).startswith("**0 of 0 jobs complete**")


def test_a_grid_stays_in_its_file():
    grid = {f"grid/{n}": 1.0 for n in range(30)}
    assert select_numbers({"a": 1.0, **grid}) == {"a": 1.0}
    assert select_numbers(grid) == {}


def test_the_ui_command_prints_the_pages_of_the_last_sweep_and_of_all_runs(tracking, monkeypatch, capsys):
    logger = MlflowLogger.open(tracking)
    for name in ("first", "second"):
        run_id = logger.start_run(name, tags={"tandem.kind": "sweep"})
        logger.end_run(run_id)
    logger.start_run("still running", tags={"tandem.kind": "sweep"})
    became = []
    monkeypatch.setattr(mlflow_ui.os, "environ", environment := {})
    monkeypatch.setattr(mlflow_ui.os, "execv", lambda path, command: became.append(command))
    assert main._run_ui_command([f"outputs={tracking.outputs}", "port=5001"]) == 0
    base = f"http://127.0.0.1:5001/#/experiments/{logger.experiment_id}/runs?workflowType=machine_learning"
    last, every, stages = capsys.readouterr().out.splitlines()
    assert last.split() == ["last", "sweep:", f"{base}&viewStateShareKey={run_id[:12]}"]
    assert every.split() == ["all", "runs:", base]
    assert stages.startswith("stages:")
    assert became[0][1:] == ["-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", "5001", "--workers", "1"]
    assert environment["MLFLOW_BACKEND_STORE_URI"] == tracking.address  # not on a command line, which all users see


def test_the_ui_command_refuses_a_folder_without_runs_and_unknown_words(tmp_path):
    with pytest.raises(UserError, match=r"nothing was logged yet: there is no .*mlflow\.db\. Run"):
        mlflow_ui.serve_ui(Tracking(outputs=str(tmp_path)))
    with pytest.raises(UserError, match=r"ui takes outputs=FOLDER.*got policy=synera"):
        main._run_ui_command(["policy=synera"])
    with pytest.raises(UserError, match=r"allowed are null"):
        main._run_ui_command(["tracking.uri=ftp://host"])
