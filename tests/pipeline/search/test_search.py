"""Searches: a space in Hydra's syntax, trials that follow one another, a memory that survives a kill."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from pipeline.command.main import main
from pipeline.errors import ConfigError
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import Tracking
from pipeline.search.search import SearchRunner, check_settings
from pipeline.search.space import parse_space
from pipeline.search.study import create_objective, open_study
from tests.support import stage_functions

EXPERIMENT = {
    "defaults": [{"override /policy": "synera"}, {"override /hydra/sweeper": "search"}, "_self_"],
    "goal": "cheap",
    "stages": {
        "cheap": {
            "_target_": "tests.support.stage_functions.measure", "_kind_": "profile", "x": 1e-2, "shape": [8],
            "deep": False,
        }
    },
    "exhibit": {
        "_target_": "pipeline.report.exhibit.Exhibit", "title": "A search", "rows": {"label": "{trial}"},
        "columns": [{"name": "score", "metric": "stage/cheap/score"}],
        "claims": [
            {"statement": "it gains", "row": "best", "baseline": "default", "metric": "score", "relation": "at_least"}
        ],
    },
    "hydra": {
        "mode": "MULTIRUN",
        "sweep": {"dir": "${outputs}/searches/cheap"},
        "sweeper": {
            "metric": "stage/cheap/score", "n_trials": 3,
            "params": {
                "stages.cheap.x": "tag(log, interval(1e-5, 1e-1))",
                "stages.cheap.shape": "choice([8],[4,4])",
                "stages.cheap.deep": "true,false",
            },
            "initial_points": {"default": {}},
        },
    },
}  # fmt: skip
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the experiment in this process with more words; its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hydra._internal.logging_config.configure_logging", lambda config: None)
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    text = "# @package _global_\n" + yaml.safe_dump(EXPERIMENT, sort_keys=False)
    (folder / "cheap.yaml").write_text(text, encoding="utf-8")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pipeline", "--config-dir", "conf", "+experiment=cheap", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    yield run
    stage_functions.clear()


def test_a_killed_search_resumes_and_logs_all_trials(run: Run, tracking: Tracking) -> None:
    stage_functions.KILLED_AT.append(1)
    outputs = f"outputs={tracking.outputs}"
    assert run(outputs, "tracking.uri=none")[0] == 130
    code, out, err = run(outputs)
    assert (code, err.count("Traceback")) == (0, 0), out + err
    assert stage_functions.CALLS[0] == (1e-2, (8,))
    assert stage_functions.CALLS[1] == stage_functions.CALLS[2], "the killed trial has other values now"
    assert len(set(stage_functions.CALLS)) == 3, "a sampler that forgot its draws drew the same again"
    assert len(stage_functions.CALLS) == 4, "the best one is not from the cache"
    assert "4 of 4 jobs complete" in out
    assert "holds  it gains" in out
    client, experiment = tracking.connect()
    (parent,) = client.search_runs([experiment], "tags.`tandem.kind` = 'sweep'")
    jobs = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert sorted(one.data.params["trial"] for one in jobs) == ["1", "2", "best"]
    (best,) = [one for one in jobs if one.data.params["trial"] == "best"]
    assert parent.data.params["search.stages.cheap.x"] == best.data.params["stages.cheap.x"]
    assert parent.data.metrics["search/stage/cheap/score"] == best.data.metrics["cheap/score"]
    assert all(one.data.metrics["search/stage/cheap/score"] == one.data.metrics["cheap/score"] for one in jobs)
    assert (parent.info.status, parent.data.metrics["search/trials"]) == ("FINISHED", 3)


def test_a_plan_shows_one_trial_and_stores_none(run: Run) -> None:
    code, out, _ = run("tracking.uri=none", "stage=plan")
    assert code == 0
    assert "in all 1 of 1 stages to build" in " ".join(out.split())
    assert not Path("outputs/searches/cheap/study.db").exists()


X = parse_space({"x": "interval(0.0,1.0)"}, ["+experiment=cheap"])
SCORE = create_objective("score", "maximize")


def search(folder: Path, trials: int, results: Sequence[float | str], rate: float = 0.0, at_once: int = 1) -> list[str]:
    """Runs a search whose jobs have these results, a text for why there is none; the overrides of x that it tried."""
    left, tried = list(results), []

    def launch(jobs: Sequence[Sequence[str]], first: int) -> list[Path]:
        return [job(number, words) for number, words in enumerate(jobs, first)]

    def job(number: int, words: Sequence[str]) -> Path:
        assert words[0] == "+experiment=cheap"
        if words[-1] != "+trial=best":
            tried.append(words[1])
            result = left.pop(0)
            failed = isinstance(result, str)
            found = {"error": result} if failed else {"metrics": {"score": result}}
            (folder / str(number)).mkdir(exist_ok=True)
            JobResult("failed" if failed else "complete", number, **found).write(folder / str(number))
        return folder / str(number)

    with open_study(folder, X, SCORE, 0, {}) as study:
        SearchRunner(study, launch, folder, trials, at_once, rate).run()
    return tried


def test_failures_beyond_max_failure_rate_end_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(search(tmp_path / "a", 3, ["no memory", 1.0, 2.0])) == 1
    printed = capsys.readouterr().out
    assert "trial 0 failed: no memory" in printed
    assert "the search ends: 1 of 1 trials failed" in printed
    assert len(search(tmp_path / "b", 3, ["no memory", 1.0, 2.0], rate=0.5)) == 3


def test_failures_of_an_earlier_command_do_not_end_a_search_that_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(search(tmp_path, 4, ["no memory", 1.0])) == 1
    assert len(search(tmp_path, 4, [1.0, "no memory", 2.0])) == 2
    assert "the search ends: 1 of 2 trials failed" in capsys.readouterr().out
    assert len(search(tmp_path, 4, [3.0])) == 1


def test_a_longer_search_continues_with_new_points(tmp_path: Path) -> None:
    first = search(tmp_path, 2, [1.0, 0.0], at_once=2)
    assert not search(tmp_path, 2, [])
    then = search(tmp_path, 4, [3.0, 2.0], at_once=2)
    assert len({*first, *then}) == 4
    found = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    assert (found["best"], len(found["trials"])) == ([2], 4)


def test_another_space_in_the_same_folder_is_refused_once_there_are_results(tmp_path: Path) -> None:
    wider = parse_space({"x": "interval(0.0,2.0)"}, ["+experiment=cheap"])
    with open_study(tmp_path, wider, SCORE, 0, {}) as study:
        study.ask()
    search(tmp_path, 1, [1.0])
    same = parse_space({"x": "interval(0.0,1.0)"}, ["+experiment=cheap", "report=quiet", "data_root=elsewhere"])
    with open_study(tmp_path, same, SCORE, 0, {}):
        pass
    with pytest.raises(ConfigError, match="search of another space: x was"), open_study(tmp_path, wider, SCORE, 0, {}):
        raise AssertionError("it began")


def test_a_metric_that_no_job_has_ends_the_search(tmp_path: Path) -> None:
    with open_study(tmp_path, X, create_objective("scoer", "maximize"), 0, {}) as study:
        JobResult("complete", metrics={"score": 1.0}).write(tmp_path)
        with pytest.raises(ConfigError, match="the job has no metric 'scoer'; it has score"):
            SearchRunner(study, lambda jobs, first: [tmp_path], tmp_path, 3).run()


def test_without_a_direction_a_metric_is_searched_for_its_better_side() -> None:
    objective = create_objective(["latency/ttft_s/median", "quality/mean", "stage/predictor/auc"])
    assert objective.directions == ("minimize", "maximize", "maximize")


def test_invalid_search_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="direction is 'up'; allowed are maximize, minimize"):
        create_objective("a", "up")
    with pytest.raises(ConfigError, match="2 metrics and 1 directions"):
        create_objective(["a", "b"], "maximize")
    with pytest.raises(ConfigError, match="n_trials is 0"):
        check_settings(0, 1, 0.0)
    with pytest.raises(ConfigError, match="max_failure_rate is 2"):
        check_settings(1, 1, 2)
    asked = parse_space({"x": "interval(0.0,1.0)", "k": "choice([8],[4,4])"}, [])
    for point, said in (({"x": 7}, "x is 7, which is outside"), ({"k": [5]}, "outside"), ({"z": 1}, "z is not searc")):
        with (
            pytest.raises(ConfigError, match=said),
            open_study(tmp_path, asked, create_objective("a", "maximize"), 0, {"d": point}),
        ):
            raise AssertionError("it began")


def test_an_initial_point_is_one_that_a_sampler_could_draw(tmp_path: Path) -> None:
    asked = parse_space({"n": "null,3", "i": "range(1,10,4)", "f": "range(0.0,1.0,0.1)"}, [])
    for key, number in (("i", 2.5), ("i", 2), ("f", 0.25)):
        with (
            pytest.raises(ConfigError, match=f"{key} is {number}, which is outside"),
            open_study(tmp_path, asked, SCORE, 0, {"a": {key: number}}),
        ):
            raise AssertionError("it began")
    with open_study(tmp_path, asked, SCORE, 0, {"a": {"n": None, "i": 5.0, "f": 0.3}}) as study:
        drawn = study.ask().params
    assert drawn == {"n": "null", "i": 5, "f": 0.3}
    assert isinstance(drawn["i"], int)


def test_sweep_syntax_becomes_distributions() -> None:
    params = {
        "a": "choice([512,128],[64,32])", "b": "tag(log,interval(1e-5,1e-3))", "c": "int(interval(32,256))",
        "d": "range(1,10,4)", "e": "true,false", "f": 7,
    }  # fmt: skip
    found = parse_space(params, ["e=true", "+experiment=x"])
    assert found.searched == {
        "a": CategoricalDistribution(["[512,128]", "[64,32]"]),
        "b": FloatDistribution(1e-5, 1e-3, log=True),
        "c": IntDistribution(32, 256),
        "d": IntDistribution(1, 9, step=4),
    }
    assert found.fixed == {"f": "7", "e": "True", "+experiment": "x"}


@pytest.mark.parametrize(("word", "high"), [("x=range(0.1,0.4,0.1)", 0.3), ("x=range(0.1,0.8,0.1)", 0.7)])
def test_a_range_excludes_its_end_whatever_the_step_is_rounded_to(word: str, high: float) -> None:
    assert parse_space({}, [word]).searched == {"x": FloatDistribution(0.1, high, step=0.1)}


@pytest.mark.parametrize(
    "word", ["x=tag(log,range(1,1000))", "x=range(5,1)", "x=range(1,5,0)", "x=glob(*)", "x=tag(log,interval(-1.0,1.0))"]
)
def test_unsupported_sweep_values_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="Allowed are"):
        parse_space({}, [word])


def test_a_search_of_two_metrics_returns_the_pareto_front(tmp_path: Path) -> None:
    asked = parse_space({"x": "interval(0.0,1.0)"}, [])
    with open_study(tmp_path, asked, create_objective(["a", "b"], ["maximize", "minimize"]), 0, {}) as study:
        for values in ((1.0, 1.0), (2.0, 2.0), (0.5, 1.5)):
            study.tell(study.ask().number, values)
        assert {point.number for point in study.best_points()} == {0, 1}


def test_one_search_at_a_time(tmp_path: Path) -> None:
    asked, wanted = parse_space({"x": "interval(0.0,1.0)"}, []), create_objective("a", "maximize")
    with (
        open_study(tmp_path, asked, wanted, 0, {}),
        pytest.raises(ConfigError, match="another search runs"),
        open_study(tmp_path, asked, wanted, 0, {}),
    ):
        raise AssertionError("both have it")
