"""`export=` of a run: the command line takes it before Hydra, and writes when the run has ended."""

import sys
from pathlib import Path

import pytest

from pipeline.command import main as door
from pipeline.errors import INTERRUPTED
from pipeline.report.job_result import JobResult
from pipeline.report.records import Records
from pipeline.report.summary import summarise
from pipeline.report.sweep import SweepCallback
from pipeline.running import WAIT_VARIABLE
from tests.pipeline.report.serve_artifact import drawn


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The folder of a run that is complete."""
    artifact = drawn(tmp_path / "serve", n=8)
    metrics = summarise(Records.read(artifact)).metrics()
    JobResult("complete", None, "synera", ("policy=synera",), artifact=str(artifact), metrics=metrics).write(
        tmp_path / "run"
    )
    return tmp_path / "run"


@pytest.fixture
def hydra(monkeypatch: pytest.MonkeyPatch, run_folder: Path) -> list[list[str]]:
    """The words that Hydra gets; its run leaves `run_folder` and ends with the status of `codes`."""
    given: list[list[str]] = []
    monkeypatch.setenv(WAIT_VARIABLE, "")

    def run(argv: list[str], _entry: object = None) -> None:
        given.append(argv)
        SweepCallback.results = run_folder
        sys.exit(int(next((word[-1] for word in argv if word.startswith("seed=")), 0)) and 1)

    monkeypatch.setattr(door, "_run_hydra", run)
    monkeypatch.setattr(SweepCallback, "results", None)
    return given


def ended(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["pipeline", *words])
    with pytest.raises(SystemExit) as found:
        door.main()
    return found.value.code


def test_a_run_with_export_leaves_its_files_and_hydra_never_sees_the_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_folder: Path, hydra: list[list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(monkeypatch, "+policy=synera", "export=latex,csv", "network=lte") == 0
    assert hydra == [["policy=synera", "network=lte"]]
    assert sorted(path.name for path in (run_folder / "export").iterdir()) == ["metrics.csv", "metrics.tex"]


def test_a_run_without_export_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_folder: Path, hydra: list[list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(monkeypatch, "+policy=synera", "network=lte") == 0
    assert not (run_folder / "export").exists()


def test_a_sweep_with_a_failed_job_is_exported_and_keeps_its_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_folder: Path, hydra: list[list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(monkeypatch, "+policy=synera", "seed=1", "export=csv") == 1
    assert (run_folder / "export" / "metrics.csv").is_file()


def test_an_interrupted_run_exports_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_folder: Path, hydra: list[list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(door, "_run_hydra", lambda _argv: sys.exit(INTERRUPTED))
    assert ended(monkeypatch, "+policy=synera", "export=csv") == INTERRUPTED
    assert not (run_folder / "export").exists()


@pytest.mark.parametrize(
    ("word", "said"), [("export=pdf", "there is no 'pdf'"), ("export=csv", "stage=plan leaves none")]
)
def test_what_cannot_be_exported_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], hydra: list[list[str]], word: str, said: str
) -> None:
    assert ended(monkeypatch, "+policy=synera", word, "stage=plan" if word == "export=csv" else "seed=0") == 2
    assert said in capfd.readouterr().err
    assert hydra == []


def test_a_command_that_left_no_results_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hydra: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(door, "_run_hydra", lambda argv: hydra.append(argv) or sys.exit(0))
    assert ended(monkeypatch, "+policy=synera", "export=csv") == 0
    assert "export=csv wrote nothing: this command left no run and no sweep" in capsys.readouterr().out
