"""Replaying a log with fresh nodes yields its commands; another policy or another log is reported."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.drivers.clock import WallClock
from serving.drivers.real_time import RealTimeDriver
from serving.drivers.simulator import ComputeResource, Simulator
from serving.log.event_log import EventHandled, EventLog, NodeCreated, feed_observer
from serving.log.reader import read_entries
from serving.log.replay import find_event_logs, replay, replay_run
from serving.messages import GenerationRequest, Node, PeerLost, PeerRestored, RequestArrived, StartWork, TimerFired
from serving.nodes.worker import Worker
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.link_loss import LinkLoss
from serving.progress import silent
from serving.runtimes.emulated import simulate
from tests.serving.log.recorded_runs import Only, recorded, recorder, watched
from tests.support.fake_pair import FakePair
from tests.support.fake_setup import models, queries, setup
from tests.support.policies import POLICIES, policy
from tests.support.simulated_nodes import World, world


def maker(w: World) -> Callable[[str], Node]:
    return lambda name: w.make[name]()


@pytest.mark.parametrize("name", POLICIES)
def test_fresh_nodes_return_the_logged_commands(tmp_path: Path, name: str) -> None:
    w, entries = recorded(tmp_path / "events.jsonl", name)
    replayed = replay(entries, maker(w))
    assert replayed.difference is None
    assert replayed.events == len(w.log.entries)
    assert replayed.commands == sum(len(commands) for *_, commands in w.log.entries) > 100
    assert replayed.described.endswith("commands: identical")


def test_replay_reports_the_difference_of_another_policy(tmp_path: Path) -> None:
    _, entries = recorded(tmp_path / "events.jsonl", "sled")
    other = world(policy("sled", draft=WindowDraft(3)))
    replayed = replay(entries, maker(other))
    assert replayed.difference is not None
    first = "event 1 differs\ndevice-0 at 0.000000 s handled RequestArrived(request=GenerationRequest(session='s0.0'"
    assert replayed.difference.startswith(first)
    assert (
        "command 1 logged    StartWork(job=1, work=DraftWork(session='s0.0', start=0, input_tokens=("
        in replayed.difference
    )
    assert "replayed  StartWork(job=1" in replayed.difference


def test_replay_reports_a_different_batch(tmp_path: Path) -> None:
    w, entries = recorded(tmp_path / "events.jsonl", "sled")
    alone = world(policy("sled", scheduler=policy("synera").scheduler))
    replayed = replay(entries, lambda name: (alone if name == "cloud" else w).make[name]())
    assert replayed.difference is not None
    assert "cloud at" in replayed.difference


def test_replay_reports_a_node_that_raises() -> None:
    class Stumbles:
        def handle(self, event: Any, now: float) -> list[Any]:
            raise KeyError("s0")

    entries = [EventHandled("cloud", 1.0, TimerFired(1), ())]
    replayed = replay([NodeCreated("cloud", 0.0), *entries], lambda _: Stumbles())
    assert replayed.difference == (
        "event 1 differs\ncloud at 1.000000 s handled TimerFired(timer=1)\n"
        "  logged    ()\n  replayed  raised KeyError('s0')"
    )
    with pytest.raises(ValueError, match="never created"):
        replay(entries, lambda _: Stumbles())


def test_a_run_with_a_restarted_cloud_replays(tmp_path: Path) -> None:
    """Born twice: its second life knows nothing of the first."""
    path = tmp_path / "events.jsonl"
    with EventLog(path) as event_log:
        w = restarted(event_log)
    entries = list(read_entries(path))
    assert set(w.endings().values()) == {"complete"}
    replayed = replay(entries, maker(w))
    assert (replayed.difference, replayed.nodes) == (None, 5)
    jobs = [
        c.job for e in entries if isinstance(e, EventHandled) and e.node == "cloud" for c in e.commands if
        isinstance(c, StartWork)
    ]  # fmt: skip
    assert jobs != sorted(jobs)  # it counts anew
    unborn = [e for i, e in enumerate(entries) if i == 0 or not (isinstance(e, NodeCreated) and e.at_s > 0.1)]
    assert replay(unborn, maker(w)).difference is not None


def restarted(event_log: EventLog) -> World:
    p = policy("synera", link_loss=LinkLoss("local"))
    w = world(p, drive=lambda own: Simulator([*own, event_log]))
    w.simulator.run(until=0.25)
    while any(s.busy_until_s > w.simulator.now for s in [w.simulator._places["cloud"].compute.processor]):
        w.simulator.run(until=w.simulator.now + 0.005)
        if not w.nodes["cloud"].running:
            break
    event_log.node_created("cloud", w.simulator.now)
    w.simulator.add("cloud", Worker("cloud", p), ComputeResource(FakePair()))
    for i in range(3):
        w.simulator.post(w.simulator.now, f"device-{i}", PeerLost("cloud"))
        w.simulator.post(w.simulator.now + 0.05, f"device-{i}", PeerRestored("cloud"))
    return w.run()


def test_a_run_in_real_time_replays_and_is_recorded_alike(tmp_path: Path) -> None:
    """Work ends on another thread, and is told when it is done."""
    live, told, path = recorder(), recorder(), tmp_path / "events.jsonl"
    with EventLog(path) as event_log:
        w = world(policy("synera"), drive=lambda own: RealTimeDriver(WallClock(), [*own, event_log, live], "wall"))
        asyncio.run(_answered(w))
    feed_observer(read_entries(path), told)
    assert replay(read_entries(path), maker(w)).difference is None
    assert told.records == live.records


async def _answered(w: World) -> None:
    await asyncio.wait_for(w.simulator.run(lambda: len(w.endings()) == len(w.calls)), 20.0)
    w.simulator.close()


# The stage.


def a_run(run: Path, name: str = "synera", **facts: Any) -> None:
    run.mkdir()
    with EventLog(run / "events.jsonl.gz", facts) as event_log:
        simulate(setup(name), models(), queries(4), observers=[event_log])


@pytest.mark.parametrize("name", POLICIES)
def test_a_recorded_run_replays_from_its_folder(tmp_path: Path, name: str) -> None:
    a_run(tmp_path / "run", name, layers=8, timeout_s=None)
    (tmp_path / "out").mkdir()
    replay_run(tmp_path / "out", setup=setup(name), run=tmp_path / "run", progress=silent)
    text = (tmp_path / "out" / "replay.txt").read_text()
    assert text.startswith("events.jsonl.gz: ")
    assert text.endswith("commands: identical\n")


def test_a_run_under_another_setup_is_refused(tmp_path: Path) -> None:
    a_run(tmp_path / "run", layers=8)
    (tmp_path / "out").mkdir()
    other = setup("synera", override={"draft": WindowDraft(2)})
    with pytest.raises(ValueError, match=r"the replay of events.jsonl.gz is not the run: event \d+ differs\ndevice-"):
        replay_run(tmp_path / "out", setup=other, run=tmp_path / "run", progress=silent)
    assert not list((tmp_path / "out").iterdir())


def test_the_log_of_each_process_replays_alone(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.devices.jsonl") as devices, EventLog(tmp_path / "events.cloud.jsonl") as cloud:
        w = watched([Only({f"device-{i}" for i in range(3)}, devices), Only({"cloud"}, cloud)])
    found = find_event_logs(tmp_path)
    assert [path.name for path in found] == ["events.cloud.jsonl", "events.devices.jsonl"]
    assert [replay(read_entries(path), maker(w)).difference for path in found] == [None, None]


def test_a_run_without_a_log_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no events.jsonl: .*record.events=true"):
        find_event_logs(tmp_path)
    a_run(tmp_path / "run")
    with pytest.raises(ValueError, match="does not say how many layers"):
        replay_run(tmp_path, setup=setup(), run=tmp_path / "run", progress=silent)


def test_a_log_with_one_event_creates_its_node(tmp_path: Path) -> None:
    w = world(policy("sled"))
    with EventLog(tmp_path / "e.jsonl") as event_log:
        event = RequestArrived(GenerationRequest("s", (1, 2), 4))
        event_log.event_handled("device-0", event, 2.0, w.make["device-0"]().handle(event, 2.0))
    assert replay(read_entries(tmp_path / "e.jsonl"), maker(w)).described == (
        "1 events of 1 nodes, 1 commands: identical"
    )
