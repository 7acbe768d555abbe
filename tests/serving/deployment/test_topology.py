"""Testbeds of tiers: what is refused, their nodes, their links, and which nodes get load reports."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from native import loader
from serving.deployment.topology import Topology
from serving.deployment.wiring import connect_nodes as connect
from serving.hardware.fleet import Fleet
from serving.hardware.latency import LinearLatency
from serving.hardware.testbed import Testbed as Bed
from serving.hardware.testbed import Tier
from serving.messages import Hop, Request, SequenceSlice, Span
from serving.network.channel import Channel, LinkTable, MultiLinkChannel
from serving.network.link import Link
from serving.network.mahimahi import MahimahiTrace
from serving.network.outages import ListedOutages, PeriodicOutages
from serving.nodes.device import Device
from serving.nodes.reservations import Reservations
from serving.nodes.worker import Worker
from serving.policy.partition.hypsplit import HypSplit
from serving.policy.slots.dispatch import HypSched, RoundRobin
from serving.policy.slots.placement import DEVICE_TIER, CloudPlacement, TieredPlacement, UShapedPlacement, scale_layers
from serving.runtimes.grpc import Grpc
from serving.runtimes.local import Local
from tests.support.conf_files import architecture, bed, chip, fleet, link
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import pair, setup
from tests.support.simulated_tiers import DEVICE, NETWORK, division, tiered_setup, tiers

NANO, NX, AGX = "jetson_orin_nano_8gb_super", "jetson_orin_nx_16gb", "jetson_agx_orin_32gb"


# What is refused.


@pytest.mark.parametrize("name", ["Edge", "1st", "a-b", "here", "device", "device_tier", "cloud", "cloud_2", "", "a.b"])
def test_reserved_tier_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"testbed: '{name}' cannot be a tier's name; use a-z, 0-9 and _"):
        Bed(device=DEVICE, tiers={name: Tier(fleet(NX))})


def test_a_testbed_has_a_cloud_or_tiers_but_not_both() -> None:
    with pytest.raises(ValueError, match=r"hardware\.cloud\) or tiers \(hardware\.tiers\), not neither"):
        Bed(device=DEVICE)
    with pytest.raises(ValueError, match="not both; set the other to null"):
        Bed(fleet(AGX), DEVICE, tiers=tiers(1))


TIERS: list[tuple[dict[str, Any], str]] = [
    ({"nodes": fleet(NX, network={"uplink_mbps": 1, "downlink_mbps": 1})}, "tier: the link belongs to the tier"),
    ({"nodes": fleet(NX, schedule={"modes": ["15W"]})}, "its nodes have no schedule of modes; set both to null"),
    ({"nodes": fleet(NX), "other_nodes": (fleet(AGX, schedule={"modes": ["15W"]}),)}, "no schedule of modes"),
    (
        {"nodes": fleet(NX), "link": Link(1, 1, outages=PeriodicOutages(period_s=9, duration_s=1))},
        r"Set link\.outages=null",
    ),
    (
        {"nodes": fleet(NX, count=2), "failing_nodes": (2,)},
        "failing_nodes names node 2 of 2 x .*; there are 2, counted from 0",
    ),
    ({"nodes": fleet(NX), "failing_nodes": (0, -1)}, "failing_nodes names node -1 of 1 x .*; there are 1"),
    ({"nodes": fleet(NX), "failing_nodes": (0,)}, "there are no outages; set outages, too"),
    ({"nodes": fleet(NX), "detect_ms": -1.0}, r"detect_ms=-1\.0 must be 0 or more"),
    ({"nodes": fleet(NX), "detect_ms": float("inf")}, "detect_ms=inf must be"),
]


@pytest.mark.parametrize(("how", "message"), TIERS)
def test_impossible_tiers_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tier(**how)


def test_a_placement_on_an_unknown_tier_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no tier 'cloud' in the testbed; there are here and nano, nx"):
        tiered_setup(tiers(1, 1), override={"placement": CloudPlacement()})
    with pytest.raises(ValueError, match=r"no tier 'nano' .* there are here and cloud, and for later stages of a pipe"):
        setup("cloud_centric", override={"placement": CloudPlacement("nano")})


def test_a_model_with_fewer_layers_than_tiers_is_refused() -> None:
    placed = TieredPlacement(division(tiers(1, 1, 1)))
    with pytest.raises(ValueError, match=r"2 layers cannot be divided over 3 tiers \(nano, nx, agx\); serve a model"):
        placed.hops(2, 32)


def test_a_model_larger_than_the_largest_node_is_refused() -> None:
    small = {"nano": Tier(fleet(NANO)), "nx": Tier(fleet(NX))}
    with pytest.raises(ValueError, match="llama2_70b"):
        tiered_setup(small, pair=pair(cloud="llama2_70b"), override={"placement": CloudPlacement("nx")})


def test_runtimes_that_do_not_support_tiers_refuse_them() -> None:
    failing = tiered_setup({"nano": Tier(fleet(NX), outages=ListedOutages(((1.0, 2.0),)))})
    with pytest.raises(ValueError, match=r"nodes fail .* choose runtime=grpc, where they are killed, emulated or simu"):
        Local().check(failing)
    with pytest.raises(ValueError, match=r"runtime\.shaping=tc shapes the links of devices, and this testbed has tier"):
        Grpc(shaping="tc").check(tiered_setup(tiers(1, 1)))


# Nodes.


def test_the_papers_testbeds_have_the_papers_nodes() -> None:
    """Table III: 3 and 2; 3, 3 and 2; 2, 2, 3 and 3."""
    found = {name: {t: tier.described for t, tier in bed(name).tiers.items()} for name in
             ("hyperion_2_tiers", "hyperion", "hyperion_4_tiers")}  # fmt: skip
    assert found == {
        "hyperion_2_tiers": {"nx": f"3 x {NX}", "agx": f"2 x {AGX}"},
        "hyperion": {"nano": f"3 x {NANO}", "nx": f"3 x {NX}", "agx": f"2 x {AGX}"},
        "hyperion_4_tiers": {"nano_1": f"2 x {NANO}", "nano_2": f"2 x {NANO}", "nx": f"3 x {NX}", "agx": f"3 x {AGX}"},
    }
    assert bed("hyperion").head_fleet.chip.name == AGX
    fleets = [tier.nodes for tier in bed("hyperion").tiers.values()]
    assert [each.power_mode.headline_tops or each.chip.headline_tops for each in fleets] == [67, 157, 200]


def test_node_names_count_through_the_fleets_of_a_tier() -> None:
    mixed = {"near": Tier(fleet(NX, count=2), (fleet(AGX),)), "far": Tier(fleet(AGX))}
    topology = Topology(tiered_setup(mixed), LAYERS)
    assert topology.tiers == {"near": ("near-0", "near-1", "near-2"), "far": ("far-0",)}
    assert {name: each.chip.name for name, each in topology.cloud_fleets.items()} == {
        "near-0": NX, "near-1": NX, "near-2": AGX, "far-0": AGX,
    }  # fmt: skip
    assert topology.cloud_processes == (("near-0",), ("near-1",), ("near-2",), ("far-0",))
    assert topology.cloud_latency("near-2").linear_token_s < topology.cloud_latency("near-0").linear_token_s


def test_a_node_too_small_for_its_tiers_layers_is_left_out() -> None:
    """The split goes by the roomiest (Eq. 5); whatever the dispatch, no request meets a node without the weights."""
    mixed = {"near": Tier(fleet(NANO), (fleet(AGX),), outages=ListedOutages(((1.0, 2.0),)), failing_nodes=(1,)),
             "far": Tier(fleet(AGX))}  # fmt: skip
    made = tiered_setup(mixed, pair=pair(cloud="llama2_13b"), override={"placement": TieredPlacement(division(
        mixed, architecture=architecture("llama2_13b"))), "dispatch": RoundRobin()})  # fmt: skip
    topology = Topology(made, LAYERS)
    assert topology.tiers == {"near": ("near-1",), "far": ("far-0",)}
    assert topology.cloud_fleets["near-1"].chip.name == AGX
    assert [*topology.node_outages("near-1")] == [(1.0, 2.0)]
    assert mixed["near"].cache_tokens(made.hop_architecture(made.hops[0])) == topology._cache_tokens("near-1") > 0


def test_named_nodes_fail_independently() -> None:
    outages = PeriodicOutages(period_s=50, duration_s=5)
    topology = Topology(tiered_setup(tiers(3, 1, outages=outages, failing_nodes=(0,))), LAYERS)
    assert next(topology.node_outages("nano-0"))
    assert [*topology.node_outages("nano-1")] == []
    alike = Topology(tiered_setup(tiers(2, 2, outages=outages)), LAYERS)
    assert len({next(alike.node_outages(name)) for name in alike.workers}) == 4
    assert next(Topology(alike.setup, LAYERS).node_outages("nx-1")) == next(alike.node_outages("nx-1"))


def test_a_node_caches_as_many_tokens_as_its_layers_leave_memory_for() -> None:
    made = tiered_setup(tiers(2, 2))
    nano, nx = made.hops
    assert made.hop_architecture(nano).layers + made.hop_architecture(nx).layers == 32
    assert (nano.span.embedding, nano.span.lm_head, nx.span.embedding, nx.span.lm_head) == (True, False, False, True)
    topology = Topology(made, LAYERS)
    rest = 8 * 2**30 - made.hop_architecture(nano).weights_nbytes("fp16")
    assert topology._cache_tokens("nano-0") == rest // made.hop_architecture(nano).kv_nbytes_per_token("fp16")


# What both ends must agree on.


def profiled_topology(folder: Path, slowdown: float = 1.0) -> Topology:
    """Two tiers with a recorded link, the first tier's chips timed by a profile; all files are below `folder`."""
    (folder / "profile").mkdir(parents=True)
    fit = LinearLatency(slowdown * 1e-3, 1e-9, 1e-8, slowdown * 1e-2, layers=32, source="profile")
    profile = {"source": "measured", "latencies": {"llama2_7b": asdict(fit)}}
    (folder / "profile" / "latency.json").write_text(json.dumps(profile))
    (folder / "link.trace").write_text("1\n2\n")
    profiled = Fleet(replace(chip("local"), memory_gb=64, profile=folder / "profile"), timing="profile")
    recorded = MahimahiTrace(path=folder / "link.trace")
    found = {"near": Tier(profiled), "far": Tier(fleet(AGX), link=Link(uplink=recorded, downlink=recorded))}
    placed = TieredPlacement(division(found, strategy=HypSplit()))
    return Topology(tiered_setup(found, override={"placement": placed}), LAYERS)


def test_two_checkouts_in_different_folders_agree_and_another_profile_does_not(tmp_path: Path) -> None:
    here, there = profiled_topology(tmp_path / "here"), profiled_topology(tmp_path / "there")
    assert here.digest == there.digest
    slow = profiled_topology(tmp_path / "slow", slowdown=50)
    assert slow.hops != here.hops
    assert slow.digest != here.digest


# Load reports.


def test_load_reports_go_to_the_previous_tier_if_it_has_a_choice() -> None:
    topology = Topology(tiered_setup(tiers(2, 1, 2), devices=3), LAYERS)
    told = {name: node.watchers for name in topology.workers if isinstance(node := topology.create_node(name), Worker)}
    assert told == {
        "nano-0": topology.devices, "nano-1": topology.devices, "nx-0": (), "agx-0": ("nx-0",), "agx-1": ("nx-0",),
    }  # fmt: skip


def test_a_dispatch_without_load_reports_has_no_watchers() -> None:
    topology = Topology(tiered_setup(tiers(2, 2), override={"dispatch": RoundRobin()}), LAYERS)
    assert {node.watchers for name in topology.workers if isinstance(node := topology.create_node(name), Worker)} == {
        ()
    }
    assert not topology.setup.policy.dispatch.needs_load_reports


ONE_TOKEN = SequenceSlice("s", 0, 1, (0,), 0, "greedy")


def test_nodes_know_what_a_node_without_work_reports() -> None:
    other = {"nx": Tier(fleet(NX), other_nodes=(fleet(AGX),)), "agx": Tier(fleet(AGX, count=2))}
    topology = Topology(tiered_setup(other), LAYERS)
    for name in topology.workers:
        worker = topology.create_node(name)
        assert isinstance(worker, Worker)
        reservations = Reservations(worker.estimator)
        span = next(hop.span for hop in topology.hops if hop.node == topology.tier_of[name])
        reservations.reserve(Request(1, ONE_TOKEN, topology.hops, 0, (name,), "device-0"), span)
        reservations.release("s")
        assert topology.idle_reports[name] == reservations.load_report(name, worker.kv_accounting)
    slow, fast = topology.idle_reports["nx-0"], topology.idle_reports["nx-1"]
    assert fast.pass_s < slow.pass_s


def test_the_first_task_of_a_device_goes_to_the_faster_node() -> None:
    other = {"nx": Tier(fleet(NX), other_nodes=(fleet(AGX),))}
    device = Topology(tiered_setup(other), LAYERS).create_node("device-0")
    assert isinstance(device, Device)
    assert device.node_selector.choose("nx", ONE_TOKEN, 8) == "nx-1"


def test_devices_that_run_the_first_hop_choose_among_the_first_tier() -> None:
    topology = Topology(tiered_setup(tiers(2, 2), "hat", devices=2), LAYERS)
    assert [hop.node for hop in topology.hops] == [DEVICE_TIER, "nano", "nx", DEVICE_TIER]
    nano, nx = topology.create_node("nano-1"), topology.create_node("nx-1")
    assert isinstance(nano, Worker)
    assert isinstance(nx, Worker)
    assert (nano.watchers, nx.watchers) == (topology.devices, ("nano-0", "nano-1"))
    device = topology.create_node("device-0")
    assert isinstance(device, Device)
    assert device.hop_path.reachable()


# How they are linked.


class Wires(LinkTable):
    """A driver that only records connections."""

    def add(self, *_: object) -> None: ...

    def post(self, *_: object) -> None: ...

    def between(self, names: Sequence[str]) -> dict[tuple[str, str], Any]:
        """The links by (sender, receiver)."""
        found = {(a, b): self.find(a, b) for a in names for b in names}
        return {pair: wire for pair, wire in found.items() if wire}


SLOW = Link(10, 20, delay_ms=7)


def linked(**how: Any) -> dict[tuple[str, str], Any]:
    found = tiers(2, 1, 1)
    found["agx"] = replace(found["agx"], link=SLOW)
    driver, topology = Wires(), Topology(tiered_setup(found, **how), LAYERS)
    connect(driver, topology)
    return driver.between((*topology.devices, *topology.workers))


def lone_s(wire: Any, nbytes: float = 1000) -> float:
    return float(wire.arrival_s(nbytes, 0.0))


@pytest.mark.skipif(loader.in_use, reason="a compiled table of links has no subclasses")
def test_every_pair_of_nodes_of_different_tiers_is_linked_over_all_links_between() -> None:
    wires = linked(devices=1)
    nodes = ("device-0", "nano-0", "nano-1", "nx-0", "agx-0")
    same = {("nano-0", "nano-1"), ("nano-1", "nano-0")}
    assert set(wires) == {(a, b) for a in nodes for b in nodes if a != b} - same
    up, down = NETWORK.mean_transfer_s(1000, "up"), NETWORK.mean_transfer_s(1000, "down")
    expected = {
        ("nano-0", "nx-0"): up,
        ("nx-0", "nano-1"): down,
        ("nx-0", "agx-0"): SLOW.mean_transfer_s(1000, "up"),
        ("agx-0", "nx-0"): SLOW.mean_transfer_s(1000, "down"),
        ("nano-0", "agx-0"): up + SLOW.mean_transfer_s(1000, "up"),
        ("agx-0", "nano-0"): down + SLOW.mean_transfer_s(1000, "down"),
        ("device-0", "nano-1"): up,
        ("device-0", "agx-0"): 2 * up + SLOW.mean_transfer_s(1000, "up"),
        ("nx-0", "device-0"): 2 * down,
        ("agx-0", "device-0"): 2 * down + SLOW.mean_transfer_s(1000, "down"),
    }
    fresh = {pair: lone_s(linked(devices=1)[pair]) for pair in expected}
    assert fresh == pytest.approx(expected)


@pytest.mark.skipif(loader.in_use, reason="a compiled table of links has no subclasses")
def test_messages_of_a_node_to_later_tiers_share_one_link() -> None:
    """To the next tier and beyond it messages queue behind each other; the other way is free."""
    wires = linked(devices=1)
    alone = lone_s(linked(devices=1)["nano-0", "nx-0"], 1e6)
    wires["nano-0", "agx-0"].arrival_s(1e6, 0.0)
    assert lone_s(wires["nano-0", "nx-0"], 1e6) == pytest.approx(alone + 0.008, abs=1e-3)
    assert lone_s(wires["nano-1", "nx-0"], 1e6) == pytest.approx(alone)
    assert lone_s(wires["nx-0", "nano-0"], 1e6) == pytest.approx(alone)


@pytest.mark.skipif(loader.in_use, reason="a compiled table of links has no subclasses")
def test_a_device_has_one_access_link_to_all_nodes() -> None:
    wires = linked(devices=2)
    alone = lone_s(linked(devices=2)["device-0", "nano-0"], 1e6)
    wires["device-0", "nano-0"].arrival_s(1e6, 0.0)
    assert lone_s(wires["device-0", "nano-1"], 1e6) > 1.9 * alone
    assert lone_s(wires["device-1", "nano-1"], 1e6) == pytest.approx(alone)
    assert isinstance(wires["device-0", "nano-0"], Channel)
    assert isinstance(wires["device-0", "nx-0"], MultiLinkChannel)


def test_a_devices_outages_are_not_those_of_the_links_between_tiers() -> None:
    shaky = replace(link("lan_1gbps"), outages=PeriodicOutages(period_s=9, duration_s=1))
    topology = Topology(tiered_setup(tiers(1, 1), network=shaky), LAYERS)
    assert topology.device_link("device-0").outages
    assert [each.outages for each in topology.intermediate_links("nx")] == [None]
    assert topology.intermediate_links("nano") == ()


def test_a_link_of_the_first_tier_is_the_link_of_the_devices() -> None:
    found = tiers(1, 1)
    found["nano"] = replace(found["nano"], link=SLOW)
    topology = Topology(tiered_setup(found), LAYERS)
    assert topology.device_link("device-0") == SLOW
    assert topology.intermediate_links("nx") == (NETWORK,)


def test_later_tiers_dial_earlier_ones() -> None:
    topology = Topology(tiered_setup(tiers(2, 1, 1)), LAYERS)
    assert topology.upstream_nodes("agx-0") == ("nano-0", "nano-1", "nx-0")
    assert topology.upstream_nodes("nx-0") == topology.tiers["nano"]
    assert topology.downstream_nodes("nano-1") == ("nx-0", "agx-0")
    assert topology.downstream_nodes("agx-0") == topology.upstream_nodes("nano-0") == ()
    assert all(
        (a in topology.upstream_nodes(b)) == (b in topology.downstream_nodes(a))
        for a in topology.workers
        for b in topology.workers
    )


# Which layers run where.


@pytest.mark.parametrize(
    ("parts", "layers", "expected"),
    [
        ({"a": (0, 16), "b": (16, 32)}, 8, [(0, 4), (4, 8)]),
        ({"a": (0, 5), "b": (5, 14), "c": (14, 32)}, 8, [(0, 1), (1, 4), (4, 8)]),
        ({"a": (0, 1), "b": (1, 2), "c": (2, 32)}, 8, [(0, 1), (1, 2), (2, 8)]),  # one each at least
        ({"a": (0, 30), "b": (30, 31), "c": (31, 32)}, 8, [(0, 6), (6, 7), (7, 8)]),
        ({"a": (0, 5), "c": (5, 32)}, 2, [(0, 1), (1, 2)]),
        ({"a": (0, 5), "b": (5, 14), "c": (14, 32)}, 32, [(0, 5), (5, 14), (14, 32)]),
    ],
)
def test_a_smaller_model_is_divided_in_proportion(parts: Any, layers: int, expected: list[tuple[int, int]]) -> None:
    found = scale_layers(parts, layers)
    assert [*found] == [*parts]
    assert [*found.values()] == expected


@pytest.mark.parametrize("layers", range(3, 40))
def test_every_layer_runs_once(layers: int) -> None:
    for ends in ((1, 2), (5, 14), (30, 31), (10, 20)):
        parts = scale_layers({"a": (0, ends[0]), "b": ends, "c": (ends[1], 32)}, layers)
        edges = [edge for part in parts.values() for edge in part]
        assert edges[0] == 0
        assert edges[-1] == layers
        assert edges[1::2][:-1] == edges[2::2]
        assert all(a < b for a, b in parts.values())


def test_a_u_shapes_middle_is_divided_over_tiers() -> None:
    of = division(tiers(1, 1, 1))
    placed = UShapedPlacement(shallow_layers=2, partition=of, download="all")
    assert placed.hops(32, 32) == (
        Hop(DEVICE_TIER, Span(0, 2, embedding=True), "all"),
        Hop("nano", Span(2, 12), "all"),
        Hop("nx", Span(12, 22), "all"),
        Hop("agx", Span(22, 32), "all"),
        Hop(DEVICE_TIER, Span(32, 32, lm_head=True)),
    )
    assert [hop.span.end_layer for hop in UShapedPlacement(shallow_layers=2, partition=of).hops(8, 32)] == [
        1,
        3,
        6,
        8,
        8,
    ]
    with pytest.raises(ValueError, match="2 layers cannot be divided over 3 tiers"):
        UShapedPlacement(shallow_layers=2, partition=of).hops(3, 32)


def test_tiers_keep_the_dispatch_of_the_policy() -> None:
    assert tiered_setup(tiers(2, 2)).policy.dispatch == HypSched()
