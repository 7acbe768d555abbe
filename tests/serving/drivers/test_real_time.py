"""The real-time driver: the simulator's log with a scripted clock, also through a thread and a transport; real time."""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from serving.drivers import real_time
from serving.drivers.clock import ScriptedClock, WallClock
from serving.drivers.observer import Observer
from serving.drivers.real_time import RealTimeDriver
from serving.drivers.simulator import ComputeResource
from serving.hardware.executor import FatalWorkError
from serving.messages import Command, EmitTokens, Event, Message, Outcome, Release, TimerFired, Work
from tests.support.fake_pair import FakePair, own_text
from tests.support.policies import POLICIES, policy
from tests.support.simulated_nodes import Log, World, world


def scripted(observers: Sequence[Observer]) -> RealTimeDriver:
    return RealTimeDriver(ScriptedClock(), observers, "hardware")


async def played(w: World, limit_s: float = 20.0) -> World:
    endings: set[str] = set()
    w.simulator.on_emit(lambda d, now: endings.add(d.session) if d.ending else None)
    over = (lambda: False) if w.simulator.clock.scripted else (lambda: len(endings) == len(w.calls))
    await asyncio.wait_for(w.simulator.run(over), limit_s)
    w.simulator.close()
    return w


def through_a_transport(w: World) -> World:
    """Messages between nodes take a detour over the event loop, as they do through a socket."""

    def carry(sender: str, to: str, message: Message) -> None:
        asyncio.get_running_loop().call_later(0.0, w.simulator.receive, to, message)

    for name in w.nodes:
        w.simulator.add_remote(name, carry)
    return w


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("detour", [False, True])
def test_with_a_scripted_clock_the_log_equals_the_simulators(name: str, detour: bool) -> None:
    expected = world(policy(name), calls_each=2).run().log.entries
    live = world(policy(name), calls_each=2, drive=scripted)
    asyncio.run(played(through_a_transport(live) if detour else live))
    assert live.log.entries == expected
    assert live.replays()


@pytest.mark.parametrize("name", POLICIES)
def test_on_the_wall_clock_every_request_is_answered_and_the_log_replays(name: str) -> None:
    """Without sleeping: the fake pair's work takes no time here, and the link hardly any."""
    w = world(policy(name), drive=lambda observers: RealTimeDriver(WallClock(), observers, "wall"))
    asyncio.run(played(w))
    assert set(w.endings().values()) == {"complete"}
    assert w.replays()
    if name in ("sled", "cloud_centric"):
        assert all(w.text(c.session) == own_text(c.prompt, c.max_new_tokens) for c in w.calls)


def test_work_is_stretched_to_the_hardware() -> None:
    """The chip is busy for the executor's durations, one work after the other."""
    spans: list[tuple[float, float]] = []

    class Spans:
        def event_handled(self, *_: object) -> None: ...

        def message_sent(self, *_: object) -> None: ...

        def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
            if node == "device-0":
                spans.append((begin_s, end_s))

    drive = lambda observers: RealTimeDriver(WallClock(), [*observers, Spans()], "hardware")  # noqa: E731
    asyncio.run(played(world(policy("edge_centric"), devices=1, limit=3, drive=drive)))
    assert all(end - begin >= 0.01 - 1e-9 for begin, end in spans)
    assert all(b[0] >= a[1] - 1e-9 for a, b in pairwise(spans))


def test_an_error_of_work_ends_the_run() -> None:
    class Broken(FakePair):
        def execute(self, work: Work) -> Any:
            raise ZeroDivisionError("chip on fire")

    w = world(policy("edge_centric"), devices=1, drive=scripted)
    w.simulator._compute["device-0"].executor = Broken()
    with pytest.raises(ZeroDivisionError, match="chip on fire"):
        asyncio.run(played(w))
    w.simulator.close()


def test_an_error_of_an_observer_that_is_told_of_work_ends_the_run() -> None:
    """As that of a log on a full disk: the work would never be done, and the run wait for it."""

    class Full(Log):
        def work_done(self, *_: object) -> None:
            raise OSError("no space left on device")

    w = world(policy("edge_centric"), devices=1, drive=lambda observers: scripted([*observers, Full()]))
    with pytest.raises(OSError, match="no space left"):
        asyncio.run(played(w, limit_s=2.0))
    w.simulator.close()


def test_a_fatal_error_ends_the_run_despite_on_error() -> None:
    """The order matters: a node that fails all its work looks idle to the nodes that choose."""
    told: list[Exception] = []

    class Broken(FakePair):
        problems = iter((ZeroDivisionError("once"), FatalWorkError("rank 1 died")))

        def execute(self, work: Work) -> Any:
            raise next(self.problems)

    drive = lambda observers: RealTimeDriver(WallClock(), observers, on_error=told.append)  # noqa: E731
    w = world(policy("sled"), devices=1, drive=drive)
    w.simulator._compute["cloud"].executor = Broken()
    with pytest.raises(FatalWorkError, match="rank 1 died"):
        asyncio.run(played(w))
    w.simulator.close()
    assert [str(problem) for problem in told] == ["once"]


def test_a_message_for_an_unknown_node_is_ignored() -> None:
    w = world(policy("edge_centric"), devices=1, drive=partial(lambda o: RealTimeDriver(WallClock(), o)))
    w.simulator.receive("unknown", EmitTokens("s", (), ()))  # type: ignore[arg-type]
    assert set(asyncio.run(played(w)).endings().values()) == {"complete"}


class Listening:
    """A node that only takes messages."""

    def __init__(self) -> None:
        self.num_heard = 0

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        self.num_heard += 1
        return ()


def test_transports_wait_for_undelivered_messages_and_not_for_future_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_time, "_MAX_UNDELIVERED", 3)

    async def play() -> None:
        live, node = RealTimeDriver(WallClock()), Listening()
        live.add("node", node, ComputeResource(FakePair()))
        for _ in range(5):
            live.post(1e6, "node", TimerFired(1))
        async with asyncio.timeout(10):
            for _ in range(3):
                await live.wait_for_capacity()
                live.receive("node", Release("s"))
            waiting = asyncio.ensure_future(live.wait_for_capacity())
            await asyncio.sleep(0)
            assert not waiting.done()
            await live.run(lambda: node.num_heard == 3)
            await waiting
        live.close()

    asyncio.run(play())


def test_a_name_belongs_to_one_node() -> None:
    live = RealTimeDriver(WallClock())
    live.add("node", Listening(), ComputeResource(FakePair()))
    with pytest.raises(ValueError, match="a node of this process is called 'node' already"):
        live.add("node", Listening(), ComputeResource(FakePair()))
    live.close()


class BrokenCache(FakePair):
    def drop(self, session: str, first: int | None) -> None:
        raise ZeroDivisionError("no such cache")


def test_an_error_of_a_cache_ends_the_run() -> None:
    w = world(policy("edge_centric"), devices=1, drive=lambda o: RealTimeDriver(WallClock(), o))
    w.simulator._compute["device-0"].executor = BrokenCache()
    with pytest.raises(ZeroDivisionError, match="no such cache"):
        asyncio.run(asyncio.wait_for(w.simulator.run(lambda: False), 20))
    w.simulator.close()


def test_an_error_of_a_cache_is_reported_where_errors_are() -> None:
    told: list[Exception] = []

    def tell(problem: Exception) -> None:
        told.append(problem)
        w.simulator.wake_up()

    w = world(policy("edge_centric"), devices=1, drive=lambda o: RealTimeDriver(WallClock(), o, on_error=tell))
    w.simulator._compute["device-0"].executor = BrokenCache()
    asyncio.run(asyncio.wait_for(w.simulator.run(lambda: bool(told)), 20))
    w.simulator.close()
    assert [str(problem) for problem in told] == ["no such cache"]
