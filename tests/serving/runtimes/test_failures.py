"""The failure schedule of nodes, and how the process group kills and restarts them."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from serving.messages import PeerLost, PeerRestored
from serving.network.outages import OutageInterval
from serving.runtimes.failures import FailureSchedule, LinkOutageInjector
from serving.runtimes.node_process import ProcessOptions
from serving.runtimes.process_group import ProcessGroup
from tests.support.fake_pair import LAYERS
from tests.support.simulated_tiers import FailingTopology, tiered_setup, tiers


def topology(**down: list[OutageInterval]) -> FailingTopology:
    return FailingTopology(
        tiered_setup(tiers(2, 2)), LAYERS, outages={name.replace("_", "-"): each for name, each in down.items()}
    )


def test_events_of_all_nodes_are_due_in_order() -> None:
    schedule = FailureSchedule(topology(nano_0=[(1.0, 4.0), (9.0, 10.0)], nx_1=[(2.0, 3.0)]))
    assert schedule.next_in_s(0.0) == 1.0
    assert schedule.due(0.5) == []
    assert schedule.due(1.0) == ["nano-0"]
    assert schedule.next_in_s(1.5) == 0.5
    assert schedule.due(3.5) == ["nx-1", "nx-1"]  # late: it failed and is to come back
    assert schedule.due(20.0) == ["nano-0"] * 3
    assert schedule.next_in_s(20.0) is None


def test_an_overdue_event_is_not_waited_for() -> None:
    assert FailureSchedule(topology(nano_0=[(1.0, 4.0)])).next_in_s(7.0) == 0.0


def test_without_outages_nothing_is_due() -> None:
    assert FailureSchedule(topology()).next_in_s(0.0) is None
    assert FailureSchedule(topology()).due(1e9) == []


def test_an_endless_schedule_is_read_one_event_at_a_time() -> None:
    def endless() -> Iterator[OutageInterval]:
        at = 0.0
        while True:
            yield at + 1.0, at + 1.5
            at += 2.0

    failing = topology()
    object.__setattr__(failing, "outages", {"nx-0": endless()})
    schedule = FailureSchedule(failing)
    assert [schedule.next_in_s(float(i)) for i in range(3) if schedule.due(float(i)) is not None] == [1.0, 0.5, 1.0]


def test_only_the_end_of_an_outage_of_the_link_begins_the_next() -> None:
    """A node's restart, or a connection that is made again, posts PeerRestored too."""
    posted: list[tuple[float, str, PeerLost | PeerRestored]] = []
    failing = FailingLinks(tiered_setup(tiers(1, 1)), LAYERS)
    injector = LinkOutageInjector(failing, ("device-0",), lambda *event: posted.append(event), lambda: False)
    injector.event_handled("device-0", PeerRestored("nano-0"), 50.0, ())
    assert posted == []
    injector.start()
    assert posted[:2] == [
        (10.0, "device-0", PeerLost("nano-0", "link")),
        (12.0, "device-0", PeerRestored("nano-0", "link")),
    ]
    injector.event_handled("device-0", PeerRestored("nano-0", "link"), 12.0, ())
    assert sorted({at for at, _, _ in posted}) == [10.0, 12.0, 20.0, 22.0]


@pytest.mark.parametrize(
    ("now", "lost_s"), [(5.0, 10.0), (11.0, 11.0), (12.0, None)], ids=["before", "during", "behind"]
)
def test_a_node_that_restarts_learns_of_links_that_are_out(now: float, lost_s: float | None) -> None:
    posted: list[tuple[float, str, PeerLost | PeerRestored]] = []
    failing = FailingLinks(tiered_setup(tiers(1, 1)), LAYERS)
    names = ("device-0", "nano-0", "nx-0")
    injector = LinkOutageInjector(failing, names, lambda *event: posted.append(event), lambda: False)
    injector.start()
    posted.clear()
    injector.node_created("nano-0", now)
    told = [(lost_s, "nano-0", PeerLost("device-0", "link")), (12.0, "nano-0", PeerRestored("device-0", "link"))]
    assert [each for each in posted if each[2].peer == "device-0"] == (told if lost_s else [])
    assert all(node == "nano-0" for _, node, _ in posted)


@dataclass(frozen=True)
class FailingLinks(FailingTopology):
    def device_link(self, device: str) -> Any:
        return SimpleNamespace(disconnections=lambda _stream: iter([(10.0, 12.0), (20.0, 22.0)]), outages=())


# The process group.


class Process:
    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def join(self, *_: object) -> None: ...


class Pipe:
    closed = False

    def close(self) -> None:
        self.closed = True


class NamedProcesses(ProcessGroup):
    """A process group that starts no process."""

    def __init__(self) -> None:
        super().__init__(topology(), (), ProcessOptions(), 4, None)  # type: ignore[arg-type]
        self.sent: list[tuple[tuple[str, ...], str, Any]] = []
        self.started: list[tuple[str, str]] = []

    def _running(self, parts: Any) -> Any:
        return nullcontext()

    def _start(self, name: str, nodes: tuple[str, ...], listen: str = "") -> None:
        self.started.append((name, listen))
        self.pipes[name], self.processes[name] = Pipe(), Process()  # type: ignore[assignment]

    def _receive_from(self, name: str, kind: str) -> str:
        return f"at {name}"

    def _send(self, names: Any, kind: str, value: Any) -> None:
        self.sent.append((tuple(names), kind, value))


def running() -> NamedProcesses:
    group = NamedProcesses()
    for name in group.topology.workers:
        group._start(name, (name,))
        group.addresses[name] = f"at {name}"
    group.started.clear()
    return group


def test_a_running_node_is_killed_and_then_restarted_at_its_address() -> None:
    group = running()
    pipe, process = group.pipes["nx-0"], group.processes["nx-0"]
    group._kill_or_restart("nx-0")
    assert process.killed  # type: ignore[attr-defined]
    assert pipe.closed
    assert "nx-0" not in group.pipes
    group._kill_or_restart("nx-0")
    assert group.started == [("nx-0", "at nx-0")]
    assert group.sent == [
        (("nx-0",), "dial", ({"nano-0": "at nano-0", "nano-1": "at nano-1"}, ("nano-0", "nano-1"))),
        (("nx-0",), "play", 0.0),
    ]


def test_a_restarted_node_waits_only_for_running_nodes() -> None:
    """Else it waits for a node that the process group, which waits for it, cannot start."""
    group = running()
    group._kill_or_restart("nano-1")
    group._kill_or_restart("nx-0")
    group._kill_or_restart("nx-0")
    ((_, _, (dialled, awaited)), _) = group.sent
    assert [*dialled] == ["nano-0", "nano-1"]
    assert awaited == ("nano-0",)


def test_every_restart_writes_its_own_event_log(tmp_path: Any) -> None:
    group = ProcessGroup(topology(), (), ProcessOptions(), 4, tmp_path)
    group._restarts["nx-0"] = 2
    config = group._process_config("nx-0", ("nx-0",), "127.0.0.1:0")
    assert config.event_log_path == tmp_path / "nx-0.2.jsonl"
    assert config.is_cloud


@pytest.mark.parametrize("name", ["nano-0", "agx-1"])
def test_the_process_of_a_tier_is_a_cloud_process(name: str, tmp_path: Any) -> None:
    group = ProcessGroup(topology(), (), ProcessOptions(), 4, tmp_path)
    assert group._process_config(name, (name,), "").is_cloud
    assert not group._process_config("devices-0", ("device-0",), "").is_cloud
