"""Benchmarks can be started: every module imports, and lists and pages name modules that exist."""

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import cluster, dsdsim, samples
from benchmarks.build_log import BuildLog, Note
from pipeline.artifacts.progress_display import NullObserver
from pipeline.artifacts.runner import Runner
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from tests.support.stage_functions import write_text

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
EXTRAS = {"playwright", "ray"}
"""What a benchmark may lack."""
IN_NO_RUN = {"cluster", "dsdsim", "screenshot"}
"""They need what a checkout with its development tools does not have."""
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(FOLDER.rglob("*.py"))
    if path.name != "__init__.py"
]


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_imports_and_says_what_it_is(name: str) -> None:
    try:
        module = import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name not in EXTRAS:
            raise
        pytest.skip(f"{problem.name} is not installed")
    assert module.__doc__


def _imported_by_the_run() -> set[str]:
    """The benchmarks that `python -m benchmarks` names."""
    tree = ast.parse((FOLDER / "__main__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "benchmarks"]
    return {alias.name for node in imports for alias in node.names}


def test_the_run_has_every_benchmark_but_those_that_need_more() -> None:
    named = _imported_by_the_run()
    assert [name for name in sorted(named) if find_spec(f"benchmarks.{name}") is None] == []
    own = {path.stem for path in FOLDER.glob("[!_]*.py") if "\ndef main(" in path.read_text(encoding="utf-8")}
    assert own - named == IN_NO_RUN


def test_pages_name_benchmarks_that_exist() -> None:
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {found for page in pages for found in re.findall(r"-m (benchmarks\.\w+)", page.read_text(encoding="utf-8"))}
    assert len(named) >= 10
    assert sorted(named - set(MODULES)) == []


def test_dsdsim_says_what_an_empty_folder_lacks(tmp_path: Path) -> None:
    assert "has no src/sim.py; give the path of a checkout" in dsdsim.find_problem(tmp_path, "python")


def test_a_sample_counts_for_the_innermost_function_of_a_part() -> None:
    run = "CPyDef_simulator___Simulator____run"
    assert samples.part_of(["_Py_dict_lookup", "CPyDef_worker___Worker___handle", run]) == [*samples.MODULES][2]
    assert samples.part_of(["CPyDef_keyed_random___uniform", "CPyPy_channel___Channel___arrival_s", run]) == "links"
    assert samples.part_of(["gc_collect_main", "CPyDef_recorder___Recorder___work_done", run]) == "garbage collector"
    assert samples.part_of(["siftup", "heappop_internal", run]) == "heap of events"
    assert samples.part_of(["_PyEval_EvalFrameDefault", "main"]) is None


def test_a_second_build_is_a_fault_unless_the_killed_host_took_the_first_along() -> None:
    killed, other = 7, 8
    notes = [Note("started", "a-1", 10, killed), Note("started", "a-1", 20, other), Note("finished", "a-1", 20, other)]
    assert cluster.is_of_killed_host("a-1", notes, killed)
    assert not cluster.is_of_killed_host("a-1", notes, other)
    assert not cluster.is_of_killed_host("a-1", [*notes, Note("finished", "a-1", 10, killed)], killed)


def test_a_build_log_notes_what_its_process_builds(tmp_path: Path) -> None:
    log, stage = BuildLog(tmp_path / "builds"), Stage("a", "tests.support.stage_functions.write_text", {})
    runner = Runner(Store(tmp_path / "store"), lambda stage, out, *_: write_text(out, text="x"), NullObserver())
    with log.noting():
        runner.ensure_built(stage)
    runner.ensure_built(stage)
    assert [note.event for note in log.notes()] == ["started", "finished"]
    assert log.counts("finished") == {stage.key: 1}
