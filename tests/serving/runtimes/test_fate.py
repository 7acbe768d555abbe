"""When nodes fail and are back, as the crew of processes looks at it, and who is started when."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from fake_tiers import LAYERS, Doomed, over, tiers

from serving.network.outages import OutageInterval
from serving.runtimes import process_group as crews
from serving.runtimes.failures import FailureSchedule
from serving.runtimes.grpc import Grpc


def cast(**down: list[OutageInterval]) -> Doomed:
    return Doomed(over(tiers(2, 2)), LAYERS, down={name.replace("_", "-"): each for name, each in down.items()})


def test_moments_come_in_order_over_all_nodes() -> None:
    fate = FailureSchedule(cast(nano_0=[(1.0, 4.0), (9.0, 10.0)], nx_1=[(2.0, 3.0)]))
    assert fate.next_in_s(0.0) == 1.0
    assert fate.due(0.5) == []
    assert fate.due(1.0) == ["nano-0"]
    assert fate.next_in_s(1.5) == 0.5
    assert fate.due(3.5) == ["nx-1", "nx-1"]  # late: it failed and is to come back
    assert fate.due(20.0) == ["nano-0"] * 3
    assert fate.next_in_s(20.0) is None


def test_what_is_overdue_is_not_waited_for() -> None:
    assert FailureSchedule(cast(nano_0=[(1.0, 4.0)])).next_in_s(7.0) == 0.0


def test_who_never_fails_is_waited_for_by_nobody() -> None:
    assert FailureSchedule(cast()).next_in_s(0.0) is None
    assert FailureSchedule(cast()).due(1e9) == []


def test_an_endless_schedule_is_looked_at_one_moment_at_a_time() -> None:
    def endless() -> Iterator[OutageInterval]:
        at = 0.0
        while True:
            yield at + 1.0, at + 1.5
            at += 2.0

    doomed = cast()
    object.__setattr__(doomed, "down", {"nx-0": endless()})
    fate = FailureSchedule(doomed)
    assert [fate.next_in_s(float(i)) for i in range(3) if fate.due(float(i)) is not None] == [1.0, 0.5, 1.0]


# The crew.


class Process:
    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def join(self, *_: object) -> None: ...


class Line:
    closed = False

    def close(self) -> None:
        self.closed = True


class Crew(crews.ProcessGroup):
    """A crew whose processes are names."""

    def __init__(self) -> None:
        super().__init__(Grpc(), cast(), (), "cpu", None, None)  # type: ignore[arg-type]
        self.told: list[tuple[tuple[str, ...], str, Any]] = []
        self.started: list[tuple[str, str]] = []

    def _running(self, parts: Any) -> Any:
        return nullcontext()

    def _start(self, name: str, nodes: tuple[str, ...], listen: str = "") -> None:
        self.started.append((name, listen))
        self.pipes[name], self.processes[name] = Line(), Process()  # type: ignore[assignment]

    def _receive_from(self, name: str, word: str) -> str:
        return f"at {name}"

    def _send(self, names: Any, word: str, value: Any) -> None:
        self.told.append((tuple(names), word, value))


def running() -> Crew:
    crew = Crew()
    for name in crew.topology.workers:
        crew._start(name, (name,))
        crew.addresses[name] = f"at {name}"
    crew.started.clear()
    return crew


def test_who_runs_is_killed_and_then_started_where_it_was() -> None:
    crew = running()
    line, process = crew.pipes["nx-0"], crew.processes["nx-0"]
    crew._kill_or_restart("nx-0")
    assert process.killed  # type: ignore[attr-defined]
    assert line.closed
    assert "nx-0" not in crew.pipes
    crew._kill_or_restart("nx-0")
    assert crew.started == [("nx-0", "at nx-0")]
    assert crew.told == [
        (("nx-0",), "dial", ({"nano-0": "at nano-0", "nano-1": "at nano-1"}, ("nano-0", "nano-1"))),
        (("nx-0",), "play", 0.0),
    ]


def test_who_starts_again_waits_for_those_alone_that_run() -> None:
    """Once it waited a minute for a node that only the crew, which waited for it, could have started."""
    crew = running()
    crew._kill_or_restart("nano-1")
    crew._kill_or_restart("nx-0")
    crew._kill_or_restart("nx-0")
    ((_, _, (dialled, awaited)), _) = crew.told
    assert [*dialled] == ["nano-0", "nano-1"]
    assert awaited == ("nano-0",)


def test_each_life_has_a_journal_of_its_own(tmp_path: Any) -> None:
    crew = crews.ProcessGroup(Grpc(), cast(), (), "cpu", tmp_path, None)
    crew._restarts["nx-0"] = 2
    part = crew._process_config("nx-0", ("nx-0",), "127.0.0.1:0")
    assert part.event_log_path == tmp_path / "nx-0.2.jsonl"
    assert part.is_cloud


@pytest.mark.parametrize("name", ["nano-0", "agx-1"])
def test_a_tiers_process_is_a_cloud(name: str, tmp_path: Any) -> None:
    crew = crews.ProcessGroup(Grpc(), cast(), (), "cpu", tmp_path, None)
    assert crew._process_config(name, (name,), "").is_cloud
    assert not crew._process_config("devices-0", ("device-0",), "").is_cloud
