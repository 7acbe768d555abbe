"""Stages that jobs of a sweep share are built in turn; what is printed and kept of a job, without a command line."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from pipeline.parallel import cells, launch
from pipeline.parallel.cells import CellEnd
from pipeline.parallel.launch import CellPlan, SweepLaunch, levels


def chain(*names: str) -> list[Stage]:
    """Stages that need each other in turn."""
    found: list[Stage] = []
    for name in names:
        needed = {one.name: one for one in found[-1:]}
        found.append(Stage(name, "f", {one: {"_stage_": one} for one in needed}, inputs=needed))
    return found


def test_stages_that_need_each_other_are_built_in_turn() -> None:
    a, b, c = chain("a", "b", "c")
    other = Stage("other", "f", {})
    assert levels([c, other, b, a]) == [[other, a], [b], [c]]
    assert levels([c, other, a]) == [[other, a], [c]]


class Builders:
    """Workers that refuse the stage `a`; `calls` has the stages of each round."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def run(self, call: Any, tasks: Any, job_nbytes: float) -> Iterator[tuple[int, str]]:
        self.calls.append([task[-1].name for task in tasks])
        yield from ((index, "too large" if task[-1].name == "a" else "") for index, task in enumerate(tasks))


def test_stages_whose_inputs_failed_are_not_built(tmp_path: Path) -> None:
    a, b = chain("a", "b")
    other, workers = Stage("other", "f", {}), Builders()
    plan = CellPlan(b, {one.digest: one for one in (a, b, other)}, frozenset(), 0.0, Store(tmp_path))
    problems = SweepLaunch(workers, None)._build_shared([a, b, other], {0: plan}, 0.0)  # type: ignore[arg-type]
    assert problems == {a.digest: "stage a, which several jobs need: too large"}
    assert workers.calls == [["a", "other"], []]


class Enders:
    """Workers whose jobs end at once."""

    def batch_size(self, num_jobs: int) -> int:
        return 1

    def run(self, call: Any, tasks: Any, job_nbytes: float) -> Iterator[tuple[int, list[CellEnd]]]:
        for index, (_, batch) in enumerate(tasks):
            yield index, [CellEnd(job.number, 0, "") for job in batch]


def test_progress_counts_the_jobs_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[tuple[int, int]]()
    lines = SimpleNamespace(progress=lambda done, total: told.append((done, total)))
    monkeypatch.setattr(launch, "ProgressLines", lambda *_, **__: lines)
    sweep = SweepLaunch(Enders(), None)  # type: ignore[arg-type]
    sweep._leave_results([0, 1, 2])
    sweep._run_cells([SimpleNamespace(number=number) for number in (3, 4)], 0.0)  # type: ignore[arg-type, misc]
    assert told == [(1, 2), (2, 2)]


def test_lines_of_a_job_are_prefixed_however_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with cells._prefixed_stderr("job 3: "):
        print("one", end="", file=sys.stderr)
        print(" line\nand", "another", end="", file=sys.stderr)
    assert capsys.readouterr().err == "job 3: one line\njob 3: and another\n"


def test_the_last_line_of_an_interrupted_job_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        with cells._prefixed_stderr("job 3: "):
            print("loss is nan", end="", file=sys.stderr)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert capsys.readouterr().err == "job 3: loss is nan\n"


def test_a_lost_job_s_result_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "written_overrides", lambda hydra: ["policy=synera", "tracking.token=abc"])
    job: Any = SimpleNamespace(number=3, config=SimpleNamespace(policy=SimpleNamespace(name="synera"), hydra=None))
    assert cells.failed_result(job, "lost").overrides == ("policy=synera", "tracking.token=***")
