"""A testbed simulated in parts that exchange no message: the same records and batches as in one simulation."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from serving.core.decoding import Decoding
from serving.deployment import shards
from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.deployment.shards import Shard, divide, whole_testbed
from serving.deployment.topology import Topology
from serving.deployment.wiring import Driver
from serving.hardware.testbed import Testbed as Bed
from serving.log.event_log import EventHandled, EventLog
from serving.log.reader import read_entries
from serving.messages import Command, Event, Message, Outcome, Work
from serving.metrics.batch_timing import BatchObserver, BatchTiming
from serving.metrics.recorder import SessionRecord
from serving.metrics.utilisation import UtilisationObserver
from serving.network.link import Link
from serving.outcomes.constant import ConstantAcceptance, StatedPredictor
from serving.policy.slots.dispatch import Affinity, RoundRobin
from serving.policy.slots.draft import RejectionAwareDraft
from serving.policy.slots.early_exit import SequencewiseExit
from serving.policy.slots.kv_cache import SharedPrefixCaching
from serving.policy.slots.placement import ColocatedPlacement
from serving.policy.slots.slo_aware import SloAware
from serving.progress import Progress, silent
from serving.runtimes.clients import UnfinishedSessionsError
from serving.runtimes.emulated import simulate
from serving.runtimes.simulated import Simulated
from serving.workload.arrivals import Arrival, Arrivals, ClosedLoop, Poisson
from serving.workload.prompt import Prompt
from serving.workload.slo import SloClass
from serving.workload.workload import WorkloadRequest
from tests.support.conf_files import fleet, link
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import setup
from tests.support.simulated_tiers import DEVICE, tiered_setup, tiers

DEVICES, REQUESTS = 24, 36
OUTCOMES = ConstantAcceptance(prompt_tokens=12, layers=LAYERS)
CLOUD = Bed(fleet("rtx_a6000", count=5), DEVICE)
LIMITS = {"max_prompt_tokens": 16, "max_new_tokens": 20}
WISP = {
    "draft": RejectionAwareDraft(8, StatedPredictor()), "scheduler": SloAware(max_num_seqs=8, guard_s=0.005)
}  # fmt: skip


def cloud(name: str, **override: Any) -> Setup:
    return setup(name, CLOUD, DEVICES, override={"dispatch": Affinity()} | override, limits=LIMITS)


def tiered(name: str, *nodes: int, network: Link | None = None) -> Setup:
    """Half-normal jitter on all links."""
    jittery = network or replace(link("lan_1gbps"), jitter_ms=2.0, jitter_shape="half_normal")
    found = {tier: replace(each, link=jittery) for tier, each in tiers(*nodes).items()}
    return tiered_setup(found, name, DEVICES, override={"dispatch": Affinity()}, network=jittery, limits=LIMITS)


SETUPS: dict[str, Setup] = {
    "sled": cloud("sled"),
    "synera": cloud("synera", early_exit=SequencewiseExit(0.8)),
    "wisp": cloud("sled", **WISP),
    "hat": cloud("hat"),
    "cloud_centric": cloud("cloud_centric"),
    "edge_centric": cloud("edge_centric"),
    "edge_centric, round robin": cloud("edge_centric", dispatch=RoundRobin()),
    "shared prefixes": cloud("sled", kv_cache=SharedPrefixCaching()),
    "drafts in the cloud": cloud("sled", placement=ColocatedPlacement()),
    "hyperion": tiered("hyperion", 6, 6, 6),
    "sled over tiers": tiered("sled", 6, 6),
    "hat over tiers": tiered("hat", 6, 6, 6),
    "several sessions on a device": replace(
        cloud("sled"), workload=replace(cloud("sled").workload, max_concurrency=3)
    ),
    "a slow link that loses": setup(
        "sled", CLOUD, DEVICES, network=Link(2.0, 8.0, delay_ms=20, jitter_ms=9, loss=0.1),
        override={"dispatch": Affinity()}, limits=LIMITS,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mixed:
    """Given times and closed loops, several at 0, on devices in no order."""

    def times(self, n: int, devices: int, seed: int) -> list[Arrival]:
        return [Arrival(i * 7 % devices, (None, 0.0, i // 9 * 0.125)[i % 3], 0.05) for i in range(n)]


ARRIVALS: dict[str, Arrivals] = {
    "poisson": Poisson(rate_per_s=20.0),
    "closed loop": ClosedLoop(),
    "closed loop, thinking": ClosedLoop(think_s=0.3),
    "mixed": Mixed(),
}


def made_queries(arrivals: Arrivals, n: int = REQUESTS) -> list[Query]:
    slo = SloClass(name="some", tokens_per_s=6.0)
    wanted = [
        WorkloadRequest(i, Prompt(f"p{i}", "?", (), "made up"), one.device, 0, one.at_s, one.think_s, 16,
                        12 + i % 5 * 2, slo if i % 2 else None)
        for i, one in enumerate(arrivals.times(n, DEVICES, 1))
    ]  # fmt: skip
    return OUTCOMES.make_queries(wanted, Decoding(), 1)


@dataclass
class Seen:
    """What is left of a run."""

    records: list[SessionRecord]
    batches: dict[str, list[str]]
    busy_s: dict[str, float]
    peak_cache_tokens: dict[str, int]


def simulated(of: Setup, queries: Sequence[Query], **how: Any) -> dict[str, SessionRecord]:
    return simulate(of, OUTCOMES.open(queries, of.policy, 1), queries, **({"may_divide": True} | how))


def without_numbers(batch: BatchTiming) -> str:
    """Tensors have serial numbers over all nodes."""
    return re.sub(r"id='([^']*/)\d+'", r"id='\1'", repr(batch))


def seen(of: Setup, queries: Sequence[Query]) -> Seen:
    timing, utilisation = BatchObserver(), UtilisationObserver()
    records = simulated(of, queries, observers=[timing, utilisation])
    batches = defaultdict(list)
    for batch in timing.batches:
        batches[batch.node].append(without_numbers(batch))
    return Seen([*records.values()], batches, utilisation.busy_s, utilisation.peak_cache_tokens)


@dataclass
class Division:
    """Stands for `divide`."""

    is_joint: bool = False
    found: list[Shard] = field(default_factory=list)

    def __call__(self, topology: Topology) -> list[Shard]:
        self.found = [whole_testbed(topology)] if self.is_joint else divide(topology)
        return self.found


@pytest.fixture
def division(monkeypatch: pytest.MonkeyPatch) -> Division:
    """Small shards, of a few devices."""
    made = Division()
    monkeypatch.setattr(shards, "_DEVICES_PER_SHARD", 5)
    monkeypatch.setattr(shards, "divide", made)
    return made


CASES = [
    *[(name, arrivals) for name in SETUPS for arrivals in ("poisson", "closed loop")],
    *[(name, arrivals) for name in ("sled", "edge_centric") for arrivals in ("closed loop, thinking", "mixed")],
]


@pytest.mark.parametrize(("name", "arrivals"), CASES)
def test_a_divided_run_equals_a_joint_one(name: str, arrivals: str, division: Division) -> None:
    queries = made_queries(ARRIVALS[arrivals])
    apart = seen(SETUPS[name], queries)
    assert len(division.found) > 1
    division.is_joint = True
    assert seen(SETUPS[name], queries) == apart
    assert {record.ending for record in apart.records} == {"complete"}
    assert len(apart.records) == REQUESTS
    assert bool(apart.batches) == ("edge" not in name)


def test_symmetric_devices_whose_requests_arrive_together_keep_the_order_of_the_queries(division: Division) -> None:
    """Without jitter all devices do the same at the same instants."""
    of = replace(SETUPS["edge_centric"], workload=replace(SETUPS["edge_centric"].workload, max_new_tokens=8))
    queries = [replace(q, request=replace(q.request, max_new_tokens=8)) for q in made_queries(ClosedLoop())]
    apart = [*simulated(of, queries)]
    assert len(division.found) > 1
    assert apart == [q.request.session for q in queries]
    division.is_joint = True
    assert [*simulated(of, queries)] == apart


def test_records_without_detail_are_equal_too(division: Division) -> None:
    queries = made_queries(ARRIVALS["poisson"])
    apart = simulated(SETUPS["sled"], queries, detail=False)
    division.is_joint = True
    assert simulated(SETUPS["sled"], queries, detail=False) == apart
    assert not any(record.draft_decisions for record in apart.values())


def test_progress_goes_on_from_shard_to_shard(division: Division) -> None:
    told: list[tuple[int, int]] = []
    progress: Progress = lambda done, total, _: told.append((done, total))  # noqa: E731
    simulated(SETUPS["sled"], made_queries(ARRIVALS["poisson"]), progress=progress)
    assert len(division.found) > 1
    assert told == [(done, REQUESTS) for done in range(1, REQUESTS + 1)]


@dataclass
class Unmarked:
    """An observer of which nothing is known: it may look at the order of events of different nodes."""

    times_s: list[float] = field(default_factory=list)

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        self.times_s.append(now)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None: ...

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...


def test_an_observer_of_which_nothing_is_known_sees_one_simulation(division: Division) -> None:
    queries, observer = made_queries(ARRIVALS["poisson"]), Unmarked()
    records = simulated(SETUPS["sled"], queries, observers=[BatchObserver(), observer])
    assert not division.found
    assert observer.times_s == sorted(observer.times_s)
    assert simulated(SETUPS["sled"], queries) == records
    assert len(division.found) > 1


def test_an_event_log_is_of_one_simulation(division: Division, tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        simulated(SETUPS["sled"], made_queries(ARRIVALS["poisson"]), observers=[BatchObserver(), log])
    assert not division.found
    times_s = [each.at_s for each in read_entries(tmp_path / "events.jsonl") if isinstance(each, EventHandled)]
    assert len(times_s) > REQUESTS
    assert times_s == sorted(times_s)


@pytest.mark.parametrize("how", [{"may_divide": False}, {"shared_chip": True}])
def test_models_and_a_shared_chip_are_of_one_simulation(how: dict[str, bool], division: Division) -> None:
    simulated(SETUPS["sled"], made_queries(ARRIVALS["poisson"], 6), **how)
    assert not division.found


def test_the_simulated_runtime_divides_its_testbed(division: Division) -> None:
    of = replace(SETUPS["sled"], workload=replace(SETUPS["sled"].workload, num_prompts=12))
    apart = Simulated(OUTCOMES).serve(of, "cpu", silent, [BatchObserver()])
    assert len(division.found) > 1
    division.is_joint = True
    assert Simulated(OUTCOMES).serve(of, "cpu", silent).records == apart.records


class Deaf:
    """A link that loses everything."""

    def arrival_s(self, nbytes: float, now: float) -> float:
        return inf


def connect_to_nothing(driver: Driver, topology: Topology, shard: Shard) -> None:
    for name in shard.devices:
        driver.connect_access(name, Deaf(), Deaf())


def test_sessions_that_never_end_are_named(division: Division, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all shards."""
    monkeypatch.setattr("serving.deployment.wiring.connect_nodes", connect_to_nothing)
    with pytest.raises(UnfinishedSessionsError, match=f"{REQUESTS} sessions wait: r00000, r00001, r00002"):
        simulated(SETUPS["sled"], made_queries(ARRIVALS["poisson"]))
    assert len(division.found) > 1
