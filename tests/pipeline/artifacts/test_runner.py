"""Crash, Ctrl-C and four at once, with real processes; what is built, in which order, and what is kept."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from safetensors import SafetensorError

from pipeline.artifacts import estimates
from pipeline.artifacts.build_lock import hold_build_lock
from pipeline.artifacts.lease import Holder, LeaseLostError
from pipeline.artifacts.progress_display import NullObserver, ProgressCallback
from pipeline.artifacts.runner import Runner
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store, StoreError
from tests.programs.build_artifacts import graph

SCRIPT = Path(__file__).parents[2] / "programs" / "build_artifacts.py"
Building = subprocess.Popen[str]
Start = Callable[..., Building]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `build_artifacts.py` on this test's store, stopping at a stage if one is named."""
    begun: list[Building] = []

    def start(stop_at: str = "") -> Building:
        command = [sys.executable, str(SCRIPT), str(tmp_path), stop_at]
        pipe = subprocess.PIPE
        begun.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def read_until(process: Building, text: str) -> str:
    """The first line with `text`; fails with all that was said instead."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if text in line:
            return line.strip()
    pytest.fail(f"no {text!r} in {said}")


def rest_of(process: Building) -> str:
    """The rest of the process's output, after a line that lets it continue."""
    said, errors = process.communicate("go on\n", timeout=60)
    return said + errors


def calls(said: str) -> list[str]:
    return re.findall(r"^call (.*)$", said, re.MULTILINE)


STOPS = [signal.SIGKILL, signal.SIGINT]
AFTERWARDS = {
    "corpus": ["corpus from step 2", "model from step 0", "report from step 0"],
    "model": ["model from step 2", "report from step 0"],
    "report": ["report from step 2"],
}


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: str(stop.name))
@pytest.mark.parametrize("stage", AFTERWARDS)
def test_a_build_stopped_in_any_stage_continues_from_that_stage(
    start: Start, tmp_path: Path, stage: str, stop: signal.Signals
) -> None:
    first = start(stage)
    read_until(first, "stopped")
    first.send_signal(stop)
    assert first.wait(60) != 0
    whole = [one.name for one in [*graph().ancestors.values(), graph()] if Store(tmp_path).has(one)]
    assert whole == ["corpus", "model", "report"][: list(AFTERWARDS).index(stage)]
    said = rest_of(start())
    assert calls(said) == AFTERWARDS[stage]
    assert "have report model corpus" in said
    assert not list(tmp_path.rglob("stray"))
    assert not list((tmp_path / ".work").iterdir())


def test_an_interrupted_build_reports_what_is_kept(start: Start) -> None:
    process = start("model")
    read_until(process, "stopped")
    process.send_signal(signal.SIGINT)
    said = rest_of(process)
    assert re.search(
        r"^model: interrupted; what it has done so far and all finished stages are kept", said, re.MULTILINE
    )
    assert "KeyboardInterrupt" in said


def test_four_concurrent_processes_build_each_stage_once(start: Start) -> None:
    builder = start("model")
    read_until(builder, "stopped")
    others = [start() for _ in range(3)]
    waiting = f"waiting for {graph().key}, which process {builder.pid} is building"
    assert [read_until(other, "waiting") for other in others] == [waiting] * 3
    assert calls(rest_of(builder)) == ["report from step 0"]
    assert [rest_of(other) for other in others] == ["have report model corpus\n"] * 3


def test_a_waiting_process_takes_over_from_a_killed_builder(start: Start) -> None:
    builder = start("model")
    read_until(builder, "stopped")
    other = start()
    read_until(other, "waiting")
    builder.kill()
    assert calls(rest_of(other)) == AFTERWARDS["model"]


@dataclass
class Recorder(NullObserver):
    """Builds every stage by writing one file, and remembers what happened."""

    calls: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    problem: BaseException | None = None

    def __call__(
        self, stage: Stage, out: Path, work: Path, inputs: Mapping[str, Path], progress: ProgressCallback
    ) -> None:
        self.calls.append(stage.name)
        self.states += [path.read_text() for path in work.iterdir()]
        (out / "weights").write_text(f"{stage.name} {len(self.calls)}")
        if self.problem:
            (work / "state").write_text("kept")
            raise self.problem

    def note(self, message: str) -> None:
        self.notes.append(message)

    def stage_failed(self, stage: Stage, message: str) -> None:
        self.notes.append(message)


def runner(root: Path, recorder: Recorder, *force: str) -> Runner:
    return Runner(Store(root), recorder, recorder, frozenset(force))


def test_inputs_are_built_first_and_no_stage_runs_twice(tmp_path: Path) -> None:
    recorder = Recorder()
    for _ in range(2):
        path = runner(tmp_path, recorder).ensure_built(graph())
    assert recorder.calls == ["corpus", "model", "report"]
    assert path == Store(tmp_path).path(graph())


def test_an_input_that_is_not_read_is_not_built(tmp_path: Path) -> None:
    recorder, model = Recorder(), graph().inputs["model"]
    report = Stage("report", "r", {"m": {"_stage_": "model"}}, inputs={"model": model}, unread=frozenset(["model"]))
    runner(tmp_path, recorder).ensure_built(report)
    assert recorder.calls == ["report"]


def test_what_is_built_is_told_with_its_folder(tmp_path: Path) -> None:
    recorder, built = Recorder(), list[tuple[str, bool]]()
    own = Runner(Store(tmp_path), recorder, recorder, on_built=lambda one, at: built.append((one.name, at.is_dir())))
    own.ensure_built(graph())
    assert built == [("corpus", True), ("model", True), ("report", True)]


def test_a_record_has_the_seconds_and_the_memory_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, measured = iter([10.0, 17.5, 18.0]), list[str]()
    monkeypatch.setattr("pipeline.artifacts.runner.time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(estimates.PeakMemory, "reset", lambda self: measured.append("reset"))
    monkeypatch.setattr(estimates.PeakMemory, "read_nbytes", lambda self: measured.append("read") or 7)
    corpus = graph().inputs["model"].inputs["corpus"]
    runner(tmp_path, Recorder()).ensure_built(corpus)
    found = Store(tmp_path).manifest(corpus)
    assert found is not None
    assert (found.seconds, found.peak_memory_nbytes, measured) == (7.5, 7, ["reset", "read"])


def test_a_helper_runs_the_first_missing_stage_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, model = Recorder(), graph().inputs["model"]
    runner(tmp_path, recorder).ensure_built(model.inputs["corpus"])
    (tmp_path / ".work" / model.key / "state").mkdir(parents=True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit, match="0"):
        runner(tmp_path, recorder).ensure_built(graph())
    assert recorder.calls == ["corpus", "model"]
    assert not Store(tmp_path).has(model)


def test_a_stage_that_trains_leaves_no_variables_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    def train(stage: Stage, out: Path, *_: object) -> None:
        seen.append(os.environ.get("LOCAL_RANK"))
        os.environ["LOCAL_RANK"] = os.environ["MASTER_ADDR"] = "0"
        (out / "weights").write_text("x")

    for name in ("LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NODE_RANK", "0")
    Runner(Store(tmp_path), train, NullObserver()).ensure_built(graph())
    assert seen == [None] * 3
    assert (os.environ.get("MASTER_ADDR"), os.environ.get("NODE_RANK")) == (None, "0")


def test_a_cached_goal_does_not_rebuild_its_ancestors(tmp_path: Path) -> None:
    recorder = Recorder()
    runner(tmp_path, recorder).ensure_built(graph())
    (tmp_path / "model").rename(tmp_path / "gone")
    runner(tmp_path, recorder).ensure_built(graph())
    assert recorder.calls == ["corpus", "model", "report"]


def test_a_build_measures_the_machine_for_later_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "_measure_flops_per_s", lambda: 7e9)
    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))
    runner(tmp_path, Recorder()).ensure_built(graph())
    assert estimates.expected_flops_per_s(tmp_path) == 7e9


def test_only_changed_stages_and_their_descendants_run(tmp_path: Path) -> None:
    recorder = Recorder()
    runner(tmp_path, recorder).ensure_built(graph(steps=3))
    runner(tmp_path, recorder).ensure_built(graph(steps=4))
    assert recorder.calls[3:] == ["model", "report"]


def test_forced_stages_and_their_descendants_are_rebuilt_once(tmp_path: Path) -> None:
    recorder = Recorder()
    runner(tmp_path, recorder).ensure_built(graph())
    again = runner(tmp_path, recorder, "model")
    paths = {again.ensure_built(graph()) for _ in range(2)}
    assert recorder.calls[3:] == ["model", "report"]
    assert (paths.pop() / "weights").read_text() == "report 5"


def test_what_another_process_reads_is_not_replaced(start: Start, tmp_path: Path) -> None:
    reader, recorder = start("report"), Recorder()
    read_until(reader, "stopped")
    model, again = graph().inputs["model"], runner(tmp_path, recorder, "model")
    message = f"force: {model.key} is being read by process {reader.pid}, which builds {graph().key}. {model.key} was"
    with pytest.raises(StoreError, match=f"{message} not replaced; run the same command again"):
        again.ensure_built(model)
    assert recorder.calls == []
    assert "have report model corpus" in rest_of(reader)
    again.ensure_built(model)
    assert recorder.calls == ["model"]


def test_a_build_waits_for_an_input_that_is_being_built_again(tmp_path: Path) -> None:
    """It would read files of two builds."""
    model, store, read = graph().inputs["model"], Store(tmp_path), list[str]()
    runner(tmp_path, Recorder()).ensure_built(model)

    class Waiting(Recorder):
        def waiting_for(self, stage: Stage, builder: str) -> None:
            (store.path(stage) / "weights").write_text("model 9")
            again.close()
            self.notes.append(f"waits for {stage.name}")

    def report(stage: Stage, out: Path, work: Path, inputs: Mapping[str, Path], progress: ProgressCallback) -> None:
        read.append((inputs["model"] / "weights").read_text())
        (out / "report").write_text("of the model")

    with ExitStack() as again:
        again.enter_context(hold_build_lock(store.locks, model, lambda builder: None))
        reader = Waiting()
        Runner(store, report, reader).ensure_built(graph())
    assert (reader.notes, read) == (["waits for model"], ["model 9"])


def test_a_truncated_artifact_is_named_and_built_again(tmp_path: Path) -> None:
    recorder = Recorder()
    path = runner(tmp_path, recorder).ensure_built(graph())
    (path / "weights").write_text("rep")
    runner(tmp_path, recorder).ensure_built(graph())
    assert recorder.calls[3:] == ["report"]
    (note,) = recorder.notes
    assert re.match(rf"{graph().key} is damaged: weights has 3 bytes instead of 8\. It was moved to .*\.damaged", note)


def test_after_an_error_only_the_work_folder_is_kept(tmp_path: Path) -> None:
    recorder = Recorder(problem=RuntimeError("loss is nan"))
    with pytest.raises(RuntimeError, match="loss is nan"):
        runner(tmp_path, recorder).ensure_built(graph())
    assert [path.name for path in (tmp_path / ".work").rglob("*") if path.is_file()] == ["state"]
    assert recorder.notes == [
        "failed; what it has done so far and all finished stages are kept, and the same command goes on from there."
    ]
    recorder.problem = None
    runner(tmp_path, recorder).ensure_built(graph())
    assert recorder.states == ["kept"]


def test_an_interruption_that_a_stage_has_told_of_is_marked(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        Runner(Store(tmp_path), stop, NullObserver()).ensure_built(graph())
    assert stopped.value.__notes__ == [
        "interrupted; all finished stages are kept, and the same command goes on from there."
    ]


def test_a_forced_stage_does_not_resume_from_its_old_work_folder(tmp_path: Path) -> None:
    recorder = Recorder(problem=RuntimeError("loss is nan"))
    with pytest.raises(RuntimeError, match="loss is nan"):
        runner(tmp_path, recorder).ensure_built(graph())
    recorder.problem = None
    runner(tmp_path, recorder, "corpus").ensure_built(graph())
    assert recorder.states == []


def write_to_full_disk(stage: Stage, out: Path, *_: object) -> None:
    (out / "weights").symlink_to("/dev/full")
    (out / "weights").write_text("x")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full to stand for a full disk")
def test_a_full_disk_is_reported_without_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no space left on the disk of .* while building corpus-.*cache clean"):
        Runner(Store(tmp_path), write_to_full_disk, NullObserver()).ensure_built(graph())
    assert not list((tmp_path / ".work").iterdir())


@pytest.mark.parametrize(
    ("problem", "free_nbytes", "is_disk_full"),
    [
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), 10**9, True),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), 4096, True),
        (OSError("write failed"), 4096, True),
        (OSError(errno.ENOSPC, "no more"), 10**9, True),
        (OSError(errno.EDQUOT, "no more"), 10**9, True),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), 10**9, False),
        (ValueError("loss is nan"), 4096, False),
    ],
)
def test_a_full_disk_is_known_by_what_libraries_say_of_it(
    problem: Exception, free_nbytes: int, is_disk_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(stage: Stage, out: Path, work: Path, *_: object) -> None:
        (work / "checkpoint").write_text("step 7")
        raise problem

    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free_nbytes))
    with pytest.raises(StoreError if is_disk_full else type(problem)):
        Runner(Store(tmp_path), fail, NullObserver()).ensure_built(graph())
    (state,) = (tmp_path / ".work").glob("*/state")
    assert (state / "checkpoint").read_text() == "step 7"


def test_an_unwritable_store_is_reported_before_any_stage_runs(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file where the folder should be")
    recorder = Recorder()
    with pytest.raises(StoreError, match="Nothing was run"):
        runner(tmp_path / "outputs", recorder).ensure_built(graph())
    assert recorder.calls == []


def test_a_cached_artifact_needs_no_writable_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    path = runner(tmp_path, recorder).ensure_built(graph())
    monkeypatch.delattr(Store, "ensure_writable")
    assert runner(tmp_path, recorder).ensure_built(graph()) == path


def take_over(root: Path, stage: Stage) -> None:
    """As another host does, for which this process gave no sign of life."""
    lease = Store(root).locks / f"{stage.key}.json"
    lease.write_text(json.dumps(asdict(Holder("other", 7, token="theirs"))))


@pytest.mark.parametrize("problem", [None, KeyboardInterrupt(), RuntimeError("a file is gone")], ids=repr)
def test_a_build_that_was_taken_over_leaves_the_other_hosts_attempt_alone(
    tmp_path: Path, problem: BaseException | None
) -> None:
    corpus = graph().inputs["model"].inputs["corpus"]
    others = tmp_path / ".work" / corpus.key / "out-theirs" / "weights"

    def overtaken(stage: Stage, out: Path, *_: object) -> None:
        (out / "weights").write_text("mine")
        take_over(tmp_path, stage)
        others.parent.mkdir()
        others.write_text("half of")
        if problem:
            raise problem

    with pytest.raises(LeaseLostError, match=rf"{corpus.key} is being built by process 7 on other"):
        Runner(Store(tmp_path), overtaken, NullObserver()).ensure_built(graph())
    assert others.read_text() == "half of"
    assert not Store(tmp_path).has(corpus)


def test_a_build_that_was_taken_over_while_its_inputs_were_built_does_not_begin(tmp_path: Path) -> None:
    called: list[str] = []

    def overtaken(stage: Stage, out: Path, *_: object) -> None:
        called.append(stage.name)
        (out / "weights").write_text("mine")
        take_over(tmp_path, graph().inputs["model"])

    with pytest.raises(LeaseLostError, match=r"model-.* is being built by process 7 on other"):
        Runner(Store(tmp_path), overtaken, NullObserver()).ensure_built(graph())
    assert called == ["corpus"]
