"""A setup on virtual time: the untimed run's tokens, the named hardware's times, and no request left waiting."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from native import loader
from serving.messages import Command, Event, Message, Outcome, Work
from serving.metrics.recorder import SessionRecord, Timeline
from serving.runtimes.clients import UnfinishedSessionsError
from serving.runtimes.emulated import simulate
from tests.support.fake_pair import own_text
from tests.support.fake_setup import PoolingEngine, StepwiseEngine, models, queries, setup
from tests.support.policies import POLICIES


def serve(name: str = "synera", n: int = 6, devices: int = 2, **how: Any) -> dict[str, SessionRecord]:
    asked = queries(n, devices, how.pop("at_s", None), how.pop("think_s", 0.0))
    return simulate(setup(name, devices=devices, **how), models(), asked)


@pytest.mark.parametrize("name", POLICIES)
def test_every_request_of_an_emulated_run_is_answered(name: str) -> None:
    records = serve(name)
    assert [r.ending for r in records.values()] == ["complete"] * 6
    if name in ("sled", "cloud_centric"):
        for i, record in enumerate(records[f"r{i:05d}"] for i in range(6)):
            assert tuple(record.tokens) == own_text(tuple(range(i + 1, i + 13)), 24)


def test_emulated_runs_with_one_seed_are_equal() -> None:
    assert serve(seed=3) == serve(seed=3)


def test_a_closed_loop_asks_again_after_thinking() -> None:
    records = serve("edge_centric", n=3, devices=1, think_s=2.0)
    a, b, c = (records[f"r{i:05d}"] for i in range(3))
    assert (b.arrived_s, c.arrived_s) == (a.ended_s + 2.0, b.ended_s + 2.0)  # type: ignore[operator]


def test_open_arrivals_do_not_wait_for_earlier_requests() -> None:
    records = serve("edge_centric", n=2, devices=1, at_s=1.5)
    assert [r.arrived_s for r in records.values()] == [1.5, 1.5]
    assert records["r00001"].started_s == records["r00000"].ended_s


def test_emulated_time_is_that_of_the_named_hardware() -> None:
    """TinyLlama-1.1B: 2.1 GB read at 69 % of the Orin's bandwidth, and 22 layers launched in 2 ms each."""
    record = serve("edge_centric", n=1, devices=1)["r00000"]
    tbt = [b - a for a, b in zip(record.token_times_s, record.token_times_s[1:], strict=False)]
    assert min(tbt) == pytest.approx(0.059, rel=0.02)
    slower = simulate(setup("edge_centric", hardware="jetson_orin_nano", devices=1), models(), queries(1, 1))
    assert slower["r00000"].device_busy_s > 1.3 * record.device_busy_s


@pytest.mark.skipif(loader.in_use, reason="a compiled simulator has no subclasses")
def test_requests_that_never_end_are_named() -> None:
    """Also if later requests of the closed loop never began."""
    from serving.drivers.simulator import ComputeResource, Simulator
    from serving.messages import Command, Event, Node

    class Silent:
        def handle(self, event: Event, now: float) -> list[Command]:
            return []

    class Deaf(Simulator):
        def add(self, name: str, node: Node, compute: ComputeResource) -> None:
            super().add(name, Silent() if name == "cloud-0" else node, compute)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.drivers.simulator.Simulator", Deaf)
        with pytest.raises(UnfinishedSessionsError, match="4 sessions wait: r00000, r00001, r00002, r00003"):
            serve("cloud_centric", n=4)


@dataclass
class Events:
    """What nodes saw, and when chips worked."""

    handled: list[tuple[str, Event, float, Sequence[Command]]] = field(default_factory=list)
    worked: list[tuple[str, Outcome, float, float]] = field(default_factory=list)

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        self.handled.append((node, event, now, tuple(commands)))

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        self.worked.append((node, outcome, begin_s, end_s))

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...


@pytest.mark.parametrize("shared_chip", [False, True])
@pytest.mark.parametrize("name", ["sled", "synera", "edge_centric"])
def test_drafts_that_run_together_end_when_each_would_alone(name: str, shared_chip: bool) -> None:
    """Events, their order and times do not tell whether drafts were written together."""
    seen = []
    for engine in (StepwiseEngine(), PoolingEngine()):
        observer = Events()
        pair = replace(models(), device=engine)
        records = simulate(
            setup(name, devices=6), pair, queries(12, 6, think_s=0.01), observers=[observer], shared_chip=shared_chip
        )
        for record in records.values():
            record.timeline = Timeline(sorted(record.timeline, key=repr))  # a draft is entered when its end is known
        seen.append((records, observer))
    assert isinstance(engine, PoolingEngine)
    (alone, apart), (together, pooled) = seen
    assert together == alone
    assert pooled.handled == apart.handled
    assert sorted(map(repr, pooled.worked)) == sorted(map(repr, apart.worked))
    assert engine.most == 1 if shared_chip else engine.most > 1
