"""Testbeds of tiers: what is refused, who is in them, how they are linked, and who is told what."""

from dataclasses import replace
from typing import Any

import pytest
from catalogue import architecture, bed, fleet, link
from fake_setup import pair, setup
from fake_tiers import DEVICE, LAYERS, NETWORK, division, over, tiers

from serving.deployment.topology import Cast
from serving.deployment.wiring import link as connect
from serving.hardware.testbed import Testbed as Bed
from serving.hardware.tier import Tier
from serving.messages import Hop, Span
from serving.network.link import Channel, Link, Relay
from serving.network.outages import Listed, Periodic
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.slots.dispatch import HypSched, RoundRobin
from serving.policy.slots.placement import HERE, Cloud, Tiers, UShape, scaled
from serving.runtimes.grpc import Grpc
from serving.runtimes.local import Local

NANO, NX, AGX = "jetson_orin_nano_8gb_super", "jetson_orin_nx_16gb", "jetson_agx_orin_32gb"


# What is refused.


@pytest.mark.parametrize("name", ["Edge", "1st", "a-b", "here", "device", "device_tier", "cloud", "cloud_2", "", "a.b"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"testbed: '{name}' cannot be a tier's name; use a-z, 0-9 and _"):
        Bed(device=DEVICE, tiers={name: Tier(fleet(NX))})


def test_a_cloud_or_tiers_but_not_both() -> None:
    with pytest.raises(ValueError, match=r"hardware\.cloud\) or tiers \(hardware\.tiers\), not neither"):
        Bed(device=DEVICE)
    with pytest.raises(ValueError, match="not both; what is not meant is null"):
        Bed(fleet(AGX), DEVICE, tiers=tiers(1))


TIERS: list[tuple[dict[str, Any], str]] = [
    ({"nodes": fleet(NX, network={"uplink_mbps": 1, "downlink_mbps": 1})}, "tier: a link is the tier's own"),
    ({"nodes": fleet(NX, schedule={"modes": ["15W"]})}, "its nodes have no schedule of modes; set null"),
    ({"nodes": fleet(NX), "others": (fleet(AGX, schedule={"modes": ["15W"]}),)}, "no schedule of modes"),
    ({"nodes": fleet(NX), "link": Link(1, 1, outages=Periodic(every_s=9, for_s=1))}, r"Set link\.outages=null"),
    ({"nodes": fleet(NX, count=2), "failing": (2,)}, "failing names node 2 of 2 x .*; there are 2, counted from 0"),
    ({"nodes": fleet(NX), "failing": (0, -1)}, "failing names node -1 of 1 x .*; there are 1"),
    ({"nodes": fleet(NX), "failing": (0,)}, "nothing says when they fail; set outages, too"),
    ({"nodes": fleet(NX), "detect_ms": -1.0}, r"detect_ms=-1\.0 must be 0 or more"),
    ({"nodes": fleet(NX), "detect_ms": float("inf")}, "detect_ms=inf must be"),
]


@pytest.mark.parametrize(("how", "message"), TIERS)
def test_impossible_tiers_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tier(**how)


def test_a_placement_names_tiers_that_there_are() -> None:
    with pytest.raises(ValueError, match="there is no tier 'cloud' in the testbed; there are here and nano, nx"):
        over(tiers(1, 1), override={"placement": Cloud()})
    with pytest.raises(ValueError, match=r"no tier 'nano' .* there are here and cloud, and for the stages of a pipe"):
        setup("cloud_centric", override={"placement": Cloud("nano")})


def test_a_model_with_fewer_layers_than_tiers_is_refused() -> None:
    placed = Tiers(division(tiers(1, 1, 1)))
    with pytest.raises(ValueError, match=r"2 layers cannot be divided over 3 tiers \(nano, nx, agx\); serve a model"):
        placed.route(2, 32)


def test_what_does_not_fit_the_roomiest_node_is_refused_before_any_work() -> None:
    small = {"nano": Tier(fleet(NANO)), "nx": Tier(fleet(NX))}
    with pytest.raises(ValueError, match="llama2_70b"):
        over(small, pair=pair(cloud="llama2_70b"), override={"placement": Cloud("nx")})


def test_runtimes_that_cannot_play_it_say_so() -> None:
    failing = over({"nano": Tier(fleet(NX), outages=Listed(((1.0, 2.0),)))})
    with pytest.raises(ValueError, match=r"nodes fail .* choose runtime=grpc, where they are killed, emulated or simu"):
        Local().check(failing)
    with pytest.raises(ValueError, match=r"runtime\.shaping=tc shapes the links of devices, and this testbed has tier"):
        Grpc(shaping="tc").check(over(tiers(1, 1)))


# Who is there.


def test_the_papers_testbeds_have_the_papers_nodes() -> None:
    """Table III: 3 and 2; 3, 3 and 2; 2, 2, 3 and 3."""
    found = {name: {t: tier.described for t, tier in bed(name).tiers.items()} for name in
             ("hyperion_two", "hyperion", "hyperion_four")}  # fmt: skip
    assert found == {
        "hyperion_two": {"nx": f"3 x {NX}", "agx": f"2 x {AGX}"},
        "hyperion": {"nano": f"3 x {NANO}", "nx": f"3 x {NX}", "agx": f"2 x {AGX}"},
        "hyperion_four": {"nano_1": f"2 x {NANO}", "nano_2": f"2 x {NANO}", "nx": f"3 x {NX}", "agx": f"3 x {AGX}"},
    }
    assert bed("hyperion").top.chip.name == AGX
    assert [tier.nodes.figures.headline_tops or tier.nodes.chip.headline_tops for tier in bed("hyperion").tiers.values()
            ] == [67, 157, 200]  # fmt: skip


def test_nodes_are_counted_within_their_tier_over_its_fleets() -> None:
    mixed = {"near": Tier(fleet(NX, count=2), (fleet(AGX),)), "far": Tier(fleet(AGX))}
    cast = Cast(over(mixed), LAYERS)
    assert cast.tiers == {"near": ("near-0", "near-1", "near-2"), "far": ("far-0",)}
    assert {name: each.chip.name for name, each in cast.cloud_fleets.items()} == {
        "near-0": NX, "near-1": NX, "near-2": AGX, "far-0": AGX,
    }  # fmt: skip
    assert cast.clouds == (("near-0",), ("near-1",), ("near-2",), ("far-0",))
    assert cast.cloud_latency("near-2").a_s < cast.cloud_latency("near-0").a_s


def test_a_node_too_small_for_its_tiers_part_is_left_out() -> None:
    """The split goes by the roomiest (Eq. 5); whatever the dispatch, no request meets a node without the weights."""
    mixed = {"near": Tier(fleet(NANO), (fleet(AGX),), outages=Listed(((1.0, 2.0),)), failing=(1,)),
             "far": Tier(fleet(AGX))}  # fmt: skip
    made = over(mixed, pair=pair(cloud="llama2_13b"), override={"placement": Tiers(division(
        mixed, architecture=architecture("llama2_13b"))), "dispatch": RoundRobin()})  # fmt: skip
    cast = Cast(made, LAYERS)
    assert cast.tiers == {"near": ("near-1",), "far": ("far-0",)}
    assert cast.cloud_fleets["near-1"].chip.name == AGX
    assert [*cast.failures("near-1")] == [(1.0, 2.0)]
    assert mixed["near"].cache_tokens(made.part(made.hops[0])) == cast._cache_tokens("near-1") > 0


def test_failures_are_those_of_the_named_nodes_each_with_its_own_luck() -> None:
    outages = Periodic(every_s=50, for_s=5)
    cast = Cast(over(tiers(3, 1, outages=outages, failing=(0,))), LAYERS)
    assert next(cast.failures("nano-0"))
    assert [*cast.failures("nano-1")] == []
    alike = Cast(over(tiers(2, 2, outages=outages)), LAYERS)
    assert len({next(alike.failures(name)) for name in alike.workers}) == 4
    assert next(Cast(alike.setup, LAYERS).failures("nx-1")) == next(alike.failures("nx-1"))


def test_a_node_holds_its_tiers_layers_and_remembers_as_many_tokens_as_are_left() -> None:
    made = over(tiers(2, 2))
    nano, nx = made.hops
    assert made.part(nano).layers + made.part(nx).layers == 32
    assert (nano.span.embed, nano.span.head, nx.span.embed, nx.span.head) == (True, False, False, True)
    cast = Cast(made, LAYERS)
    rest = 8 * 2**30 - made.part(nano).weights_nbytes("fp16")
    assert cast._cache_tokens("nano-0") == rest // made.part(nano).kv_nbytes_per_token("fp16")


# Who is told.


def test_watchers_are_the_nodes_of_the_tier_before_where_there_is_a_choice() -> None:
    cast = Cast(over(tiers(2, 1, 2), devices=3), LAYERS)
    told = {name: node.watchers for name in cast.workers if isinstance(node := cast.node(name), Worker)}
    assert told == {
        "nano-0": cast.devices, "nano-1": cast.devices, "nx-0": (), "agx-0": ("nx-0",), "agx-1": ("nx-0",),
    }  # fmt: skip


def test_nobody_watches_where_the_dispatch_does_not_ask() -> None:
    cast = Cast(over(tiers(2, 2), override={"dispatch": RoundRobin()}), LAYERS)
    assert {node.watchers for name in cast.workers if isinstance(node := cast.node(name), Worker)} == {()}
    assert not cast.setup.policy.dispatch.watches


def test_behind_a_devices_own_hop_devices_choose_among_the_first_tier() -> None:
    cast = Cast(over(tiers(2, 2), "hat", devices=2), LAYERS)
    assert [hop.node for hop in cast.hops] == [HERE, "nano", "nx", HERE]
    nano, nx = cast.node("nano-1"), cast.node("nx-1")
    assert isinstance(nano, Worker)
    assert isinstance(nx, Worker)
    assert (nano.watchers, nx.watchers) == (cast.devices, ("nano-0", "nano-1"))
    device = cast.node("device-0")
    assert isinstance(device, Device)
    assert device.route.reachable()


# How they are linked.


class Wires:
    """A driver that only remembers who was connected how."""

    def __init__(self) -> None:
        self.wires: dict[tuple[str, str], Any] = {}

    def add(self, *_: object) -> None: ...

    def post(self, *_: object) -> None: ...

    def connect(self, a: str, b: str, wire: Any) -> None:
        self.wires[a, b] = wire


SLOW = Link(10, 20, delay_ms=7)


def linked(**how: Any) -> dict[tuple[str, str], Any]:
    found = tiers(2, 1, 1)
    found["agx"] = replace(found["agx"], link=SLOW)
    driver = Wires()
    connect(driver, Cast(over(found, **how), LAYERS))
    return driver.wires


def lone_s(wire: Any, nbytes: float = 1000) -> float:
    return float(wire.arrive(nbytes, 0.0))


def test_every_pair_of_nodes_of_different_tiers_is_linked_over_all_links_between() -> None:
    wires = linked(devices=1)
    nodes = ("device-0", "nano-0", "nano-1", "nx-0", "agx-0")
    same = {("nano-0", "nano-1"), ("nano-1", "nano-0")}
    assert set(wires) == {(a, b) for a in nodes for b in nodes if a != b} - same
    up, down = NETWORK.seconds(1000, "up"), NETWORK.seconds(1000, "down")
    expected = {
        ("nano-0", "nx-0"): up,
        ("nx-0", "nano-1"): down,
        ("nx-0", "agx-0"): SLOW.seconds(1000, "up"),
        ("agx-0", "nx-0"): SLOW.seconds(1000, "down"),
        ("nano-0", "agx-0"): up + SLOW.seconds(1000, "up"),
        ("agx-0", "nano-0"): down + SLOW.seconds(1000, "down"),
        ("device-0", "nano-1"): up,
        ("device-0", "agx-0"): 2 * up + SLOW.seconds(1000, "up"),
        ("nx-0", "device-0"): 2 * down,
        ("agx-0", "device-0"): 2 * down + SLOW.seconds(1000, "down"),
    }
    fresh = {pair: lone_s(linked(devices=1)[pair]) for pair in expected}
    assert fresh == pytest.approx(expected)


def test_what_a_node_says_one_way_leaves_by_one_port() -> None:
    """To the next tier and beyond it messages queue behind each other; the other way is free."""
    wires = linked(devices=1)
    alone = lone_s(linked(devices=1)["nano-0", "nx-0"], 1e6)
    wires["nano-0", "agx-0"].arrive(1e6, 0.0)
    assert lone_s(wires["nano-0", "nx-0"], 1e6) == pytest.approx(alone + 0.008, abs=1e-3)
    assert lone_s(wires["nano-1", "nx-0"], 1e6) == pytest.approx(alone)
    assert lone_s(wires["nx-0", "nano-0"], 1e6) == pytest.approx(alone)


def test_a_device_has_one_access_link_to_all() -> None:
    wires = linked(devices=2)
    alone = lone_s(linked(devices=2)["device-0", "nano-0"], 1e6)
    wires["device-0", "nano-0"].arrive(1e6, 0.0)
    assert lone_s(wires["device-0", "nano-1"], 1e6) > 1.9 * alone
    assert lone_s(wires["device-1", "nano-1"], 1e6) == pytest.approx(alone)
    assert isinstance(wires["device-0", "nano-0"], Channel)
    assert isinstance(wires["device-0", "nx-0"], Relay)


def test_a_devices_outages_are_not_those_of_the_links_between_tiers() -> None:
    shaky = replace(link("lan_1gbps"), outages=Periodic(every_s=9, for_s=1))
    cast = Cast(over(tiers(1, 1), network=shaky), LAYERS)
    assert cast.link("device-0").outages
    assert [each.outages for each in cast.further("nx")] == [None]
    assert cast.further("nano") == ()


def test_the_first_tiers_link_is_the_devices() -> None:
    found = tiers(1, 1)
    found["nano"] = replace(found["nano"], link=SLOW)
    cast = Cast(over(found), LAYERS)
    assert cast.link("device-0") == SLOW
    assert cast.further("nx") == (NETWORK,)


def test_later_tiers_dial_earlier_ones() -> None:
    cast = Cast(over(tiers(2, 1, 1)), LAYERS)
    assert cast.before("agx-0") == ("nano-0", "nano-1", "nx-0")
    assert cast.before("nx-0") == cast.tiers["nano"]
    assert cast.behind("nano-1") == ("nx-0", "agx-0")
    assert cast.behind("agx-0") == cast.before("nano-0") == ()
    assert all((a in cast.before(b)) == (b in cast.behind(a)) for a in cast.workers for b in cast.workers)


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
    found = scaled(parts, layers)
    assert [*found] == [*parts]
    assert [*found.values()] == expected


@pytest.mark.parametrize("layers", range(3, 40))
def test_every_layer_runs_once(layers: int) -> None:
    for ends in ((1, 2), (5, 14), (30, 31), (10, 20)):
        parts = scaled({"a": (0, ends[0]), "b": ends, "c": (ends[1], 32)}, layers)
        edges = [edge for part in parts.values() for edge in part]
        assert edges[0] == 0
        assert edges[-1] == layers
        assert edges[1::2][:-1] == edges[2::2]
        assert all(a < b for a, b in parts.values())


def test_a_u_shapes_middle_is_divided_over_tiers() -> None:
    of = division(tiers(1, 1, 1))
    placed = UShape(shallow=2, division=of, download="all")
    assert placed.route(32, 32) == (
        Hop(HERE, Span(0, 2, embed=True), "all"),
        Hop("nano", Span(2, 12), "all"),
        Hop("nx", Span(12, 22), "all"),
        Hop("agx", Span(22, 32), "all"),
        Hop(HERE, Span(32, 32, head=True)),
    )
    assert [hop.span.last for hop in UShape(shallow=2, division=of).route(8, 32)] == [1, 3, 6, 8, 8]
    with pytest.raises(ValueError, match="2 layers cannot be divided over 3 tiers"):
        UShape(shallow=2, division=of).route(3, 32)


def test_the_dispatch_is_asked_what_the_policy_says() -> None:
    assert over(tiers(2, 2)).policy.dispatch == HypSched()
