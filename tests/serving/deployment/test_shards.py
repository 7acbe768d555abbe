"""Which nodes of a testbed may exchange messages: by hand, for one tier, for three that share nodes, and for none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from serving.core.queued_request import Task
from serving.deployment import shards
from serving.deployment.setup import Setup
from serving.deployment.shards import Shard, divide
from serving.deployment.topology import Topology
from serving.hardware.testbed import Testbed as Bed
from serving.messages import Hop, LoadReport, Span
from serving.network.outages import PeriodicOutages
from serving.policy.slots.dispatch import Affinity, Dispatch, HypSched, RandomDispatch, RoundRobin
from tests.support.conf_files import fleet
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import setup
from tests.support.simulated_tiers import DEVICE, tiered_setup, tiers

OUTAGES = PeriodicOutages(period_s=9, duration_s=1)


@dataclass(frozen=True)
class Table:
    """All tasks of an owner go to the node that is written down."""

    node: dict[str, str]
    needs_load_reports: bool = False

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        return self.node[task.owner]

    def node_of(self, owner: str, nodes: Sequence[str]) -> str:
        return self.node[owner] if len(nodes) > 1 else nodes[0]


FOUR = Table({"device-0": "cloud-2", "device-1": "cloud-0", "device-2": "cloud-2", "device-3": "cloud-1"})


def one_tier(dispatch: Dispatch = FOUR, nodes: int = 4, **how: Any) -> Topology:
    bed = Bed(fleet("rtx_a6000", count=nodes), DEVICE)
    return Topology(setup("sled", bed, 4, override={"dispatch": dispatch}, **how), LAYERS)


def tiered(of: Setup) -> Topology:
    return Topology(of, LAYERS)


@pytest.fixture
def _unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_DEVICES_PER_SHARD", 1)


@pytest.mark.usefixtures("_unpacked")
def test_a_node_of_one_tier_is_a_shard_with_its_devices() -> None:
    assert divide(one_tier()) == [
        Shard(("cloud-0",), ("device-1",)),
        Shard(("cloud-1",), ("device-3",)),
        Shard(("cloud-2", "cloud-3"), ("device-0", "device-2")),  # no device uses the last one
    ]


@pytest.mark.usefixtures("_unpacked")
def test_devices_without_a_cloud_are_alone_whatever_the_dispatch() -> None:
    topology = Topology(setup("edge_centric", devices=3, override={"dispatch": RoundRobin()}), LAYERS)
    assert divide(topology) == [Shard((), (name,)) for name in ("device-0", "device-1", "device-2")]


THREE_TIERS = {
    "device-0": "nano-0", "device-1": "nano-1", "device-2": "nano-2", "device-3": "nano-0",
    "nano-0": "nx-0", "nano-1": "nx-1", "nano-2": "nx-2",
}  # fmt: skip


@pytest.mark.usefixtures("_unpacked")
@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (
            {"nx-0": "agx-0", "nx-1": "agx-1", "nx-2": "agx-0"},
            [
                Shard(("nano-0", "nano-2", "nx-0", "nx-2", "agx-0"), ("device-0", "device-2", "device-3")),
                Shard(("nano-1", "nx-1", "agx-1"), ("device-1",)),
            ],
        ),
        (
            {"nx-0": "agx-1", "nx-1": "agx-1", "nx-2": "agx-1"},  # the other node of the last tier serves nobody
            [
                Shard(
                    ("nano-0", "nano-1", "nano-2", "nx-0", "nx-1", "nx-2", "agx-1", "agx-0"),
                    ("device-0", "device-1", "device-2", "device-3"),
                )
            ],
        ),
    ],
    ids=["two paths share the last tier's node", "all share it"],
)
def test_paths_over_three_tiers_that_share_a_node_are_one_shard(last: dict[str, str], expected: list[Shard]) -> None:
    override = {"dispatch": Table(THREE_TIERS | last)}
    assert divide(tiered(tiered_setup(tiers(3, 3, 2), devices=4, override=override))) == expected


@pytest.mark.usefixtures("_unpacked")
def test_the_device_chooses_the_first_node_of_the_cloud_where_its_own_layers_come_before() -> None:
    override = {"dispatch": Table({"device-0": "nano-1", "device-1": "nano-0", "nano-0": "nx-1", "nano-1": "nx-0"})}
    found = divide(tiered(tiered_setup(tiers(2, 2), "hat", override=override)))
    assert found == [Shard(("nano-0", "nx-1"), ("device-1",)), Shard(("nano-1", "nx-0"), ("device-0",))]


def test_small_parts_are_packed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_DEVICES_PER_SHARD", 3)
    assert divide(one_tier()) == [
        Shard(("cloud-0", "cloud-1"), ("device-1", "device-3")),
        Shard(("cloud-2", "cloud-3"), ("device-0", "device-2")),
    ]
    monkeypatch.setattr(shards, "_DEVICES_PER_SHARD", 4)
    assert len(divide(one_tier())) == 1


def whole(topology: Topology) -> list[Shard]:
    return [Shard(topology.workers, topology.devices)]


TIERED = tiered_setup(tiers(2, 2), override={"dispatch": Affinity()})


@dataclass(frozen=True)
class Twice:
    """The first tier runs the last layers, too."""

    def hops(self, layers: int, timed_layers: int) -> tuple[Hop, ...]:
        a, b = layers // 8, layers - layers // 8
        spans = Span(0, a, embedding=True), Span(a, b), Span(b, layers, lm_head=True)
        return tuple(Hop(tier, span, "all") for tier, span in zip(("nano", "nx", "nano"), spans, strict=True))


ONE: dict[str, Topology] = {
    "round robin": one_tier(RoundRobin()),
    "at random": one_tier(RandomDispatch()),
    "load reports": one_tier(HypSched()),
    "load reports, beside fixed nodes": one_tier(replace(FOUR, needs_load_reports=True)),
    "one node, round robin": one_tier(RoundRobin(), nodes=1),
    "one node": one_tier(Affinity(), nodes=1),
    "outages of a tier": tiered(tiered_setup(tiers(2, 2, outages=OUTAGES), override={"dispatch": Affinity()})),
    "outages of the last tier alone": tiered(
        tiered_setup(tiers(2) | {"nx": replace(tiers(1, 2)["nx"], outages=OUTAGES)}, override={"dispatch": Affinity()})
    ),
    "outages of all links": one_tier(network=replace(setup().network, outages=OUTAGES)),
    "outages of some devices' links": Topology(
        setup(
            "sled",
            Bed(
                fleet("rtx_a6000", count=4),
                fleets=(DEVICE, replace(DEVICE, network=replace(setup().network, outages=OUTAGES))),
            ),
            4,
            override={"dispatch": FOUR},
        ),
        LAYERS,
    ),
    "a tier that is passed twice": tiered(
        replace(TIERED, policy=replace(TIERED.policy, placement=Twice(), dispatch=Affinity()))
    ),
}


@pytest.mark.usefixtures("_unpacked")
@pytest.mark.parametrize("why", ONE)
def test_a_testbed_is_one_shard_where_any_two_nodes_may_meet(why: str) -> None:
    assert divide(ONE[why]) == whole(ONE[why])


@pytest.mark.parametrize("devices", [250, 1000])
def test_each_node_is_in_one_shard(devices: int) -> None:
    topology = Topology(
        setup("sled", Bed(fleet("rtx_a6000", count=20), DEVICE), devices, override={"dispatch": Affinity()}), LAYERS
    )
    found = divide(topology)
    assert sorted(name for each in found for name in each.workers) == sorted(topology.workers)
    assert sorted(name for each in found for name in each.devices) == sorted(topology.devices)
    assert len(found) > 2
    assert all(len(each.devices) <= 100 for each in found)
