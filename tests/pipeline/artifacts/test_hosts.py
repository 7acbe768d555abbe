"""Processes of hosts that share a folder and no file locks: one builds, and another goes on when its host is gone."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.artifacts.store import Store
from tests.pipeline.artifacts.test_runner import AFTERWARDS, Building, calls, read_until, rest_of
from tests.programs.build_artifacts import graph
from tests.programs.build_on_host import OFTEN_S

ROOT = Path(__file__).parents[3]
Start = Callable[..., Building]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a build on the host of this name and boot id, stopping at a stage if one is named."""
    begun: list[Building] = []

    def start(name: str, boot_id: str, stop_at: str = "") -> Building:
        program = ROOT / "tests" / "programs" / "build_on_host.py"
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command, pipe = [sys.executable, str(program), name, boot_id, str(tmp_path), stop_at], subprocess.PIPE
        env = {**os.environ, "PYTHONPATH": paths}
        begun.append(subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def leases(root: Path) -> list[Path]:
    return sorted(Store(root).locks.glob("[!.]*.json"))


def stamps(root: Path) -> dict[Path, tuple[int, int]]:
    """The records of all artifacts, which differ if one was written again."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in root.rglob("stage.json")}


def let_expire(root: Path) -> None:
    """As after a minute without a sign of life."""
    for lease in leases(root):
        os.utime(lease, (0, 0))


def wait_for_heartbeat(builder: Building, root: Path) -> None:
    """Until the process has touched each lease that had expired."""
    for _ in range(1000):
        if all(lease.stat().st_mtime for lease in leases(root)):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            builder.wait(2 * OFTEN_S)
    pytest.fail("the builder gives no sign of life")


def test_a_build_of_a_killed_host_is_taken_over_by_one_of_two_that_wait(start: Start, tmp_path: Path) -> None:
    builder = start("near", "1", "model")
    read_until(builder, "stopped")
    let_expire(tmp_path)
    wait_for_heartbeat(builder, tmp_path)
    others = [start("far", boot_id) for boot_id in ("2", "3")]
    waiting = f"waiting for {graph().key}, which process {builder.pid} on near is building"
    assert [read_until(other, "waiting") for other in others] == [waiting] * 2
    builder.kill()
    builder.wait(60)
    assert len(leases(tmp_path)) == 2
    let_expire(tmp_path)
    told = [rest_of(other) for other in others]
    assert sorted(calls("".join(told))) == sorted(AFTERWARDS["model"])
    assert [said.splitlines()[-1] for said in told] == ["have report model corpus"] * 2
    assert not leases(tmp_path)


@pytest.fixture
def sleeper(start: Start, tmp_path: Path) -> Building:
    """A process that has stopped in the middle of the model's build, for longer than its leases last."""
    begun = start("node", "1", "model")
    read_until(begun, "stopped")
    begun.send_signal(signal.SIGSTOP)
    os.waitpid(begun.pid, os.WUNTRACED)
    let_expire(tmp_path)
    return begun


def wake(sleeper: Building) -> str:
    """What it says of its end."""
    sleeper.send_signal(signal.SIGCONT)
    return sleeper.communicate(timeout=60)[1]


def test_a_host_that_wakes_up_while_another_builds_writes_nothing(
    start: Start, sleeper: Building, tmp_path: Path
) -> None:
    other = start("node", "2", "model")
    read_until(other, "stopped")
    problem = wake(sleeper)
    assert f"is being built by process {other.pid} on node: this process slept longer than its lease" in problem
    assert not Store(tmp_path).has(graph().inputs["model"])
    assert calls(rest_of(other)) == ["report from step 0"]


def test_a_host_that_wakes_up_after_another_has_built_says_so(start: Start, sleeper: Building, tmp_path: Path) -> None:
    assert "have report model corpus" in rest_of(start("node", "2"))
    built = stamps(tmp_path)
    assert f"{graph().inputs['model'].key} was built by another host meanwhile" in wake(sleeper)
    assert stamps(tmp_path) == built
    assert len(built) == 3
