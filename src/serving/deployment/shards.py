"""Divides a testbed into parts that exchange no message, which are simulated one after the other."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from serving.deployment.topology import Topology
from serving.policy.slots.dispatch import OwnerDispatch
from serving.policy.slots.placement import DEVICE_TIER

_DEVICES_PER_SHARD = 100
"""Small parts are packed to at most so many devices: what is made once a shard then costs little."""


@dataclass(frozen=True)
class Shard:
    """Nodes that exchange no message with any other node."""

    workers: tuple[str, ...]
    devices: tuple[str, ...]


def whole_testbed(topology: Topology) -> Shard:
    return Shard(topology.workers, topology.devices)


def divide(topology: Topology) -> list[Shard]:
    """Shards that have every node once; one shard where any two nodes may exchange messages."""
    dispatch = topology.setup.policy.dispatch
    if not topology.workers:
        return list(_packed(Shard((), (device,)) for device in topology.devices))
    if not isinstance(dispatch, OwnerDispatch) or _paths_may_change(topology):
        return [whole_testbed(topology)]
    return list(_packed(_components(topology, dispatch)))


def _paths_may_change(topology: Topology) -> bool:
    """True if a device's requests may reach other nodes than those that the dispatch names, or events come from nodes
    beside its path.
    """
    tiers = [hop.node for hop in topology.hops if hop.node != DEVICE_TIER]
    return (
        topology.setup.policy.dispatch.needs_load_reports
        or len(set(tiers)) < len(tiers)
        or any(topology.tier(name).outages for name in tiers)
        or any(topology.device_link(device).outages for device in topology.devices)
    )


def _components(topology: Topology, dispatch: OwnerDispatch) -> list[Shard]:
    """The nodes of paths that share a node, and the devices of these paths; in the order of their first nodes."""
    parents, first_nodes = {worker: worker for worker in topology.workers}, dict[str, str]()
    for device in topology.devices:
        first, *later = _path(topology, dispatch, device)
        first_nodes[device] = first
        for node in later:
            parents[_root(parents, node)] = _root(parents, first)
    members: dict[str, tuple[list[str], list[str]]] = {}
    for worker in topology.workers:
        members.setdefault(_root(parents, worker), ([], []))[0].append(worker)
    for device, first in first_nodes.items():
        members[_root(parents, first)][1].append(device)
    return [Shard(tuple(workers), tuple(devices)) for workers, devices in members.values()]


def _path(topology: Topology, dispatch: OwnerDispatch, device: str) -> Iterator[str]:
    """The cloud's nodes that a device's requests pass: each is chosen by the one before, the first by the device."""
    owner = device
    for hop in topology.hops:
        if hop.node != DEVICE_TIER:
            owner = dispatch.node_of(owner, topology.tiers[hop.node])
            yield owner


def _root(parents: dict[str, str], node: str) -> str:
    while parents[node] != node:
        node = parents[node]
    return node


def _packed(components: Iterable[Shard]) -> Iterator[Shard]:
    """The same, neighbours together as far as they fit into a shard."""
    workers, devices = list[str](), list[str]()
    for each in components:
        if devices and each.devices and len(devices) + len(each.devices) > _DEVICES_PER_SHARD:
            yield Shard(tuple(workers), tuple(devices))
            workers, devices = [], []
        workers += each.workers
        devices += each.devices
    yield Shard(tuple(workers), tuple(devices))
