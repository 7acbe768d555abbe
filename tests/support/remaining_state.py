"""The state that a host holds for sessions; for the tests and for benchmarks/soak.

All of it is 0 once all sessions are over. Every dict, list, set and deque of a node is counted, whatever its name, so
that a new table is counted too.
"""

from collections import deque
from typing import Any

from serving.drivers.real_time import RealTimeDriver
from serving.nodes.device import Device
from serving.nodes.session_registry import MAX_RELEASED
from serving.nodes.worker import Worker
from serving.runtimes.host import NodeHost
from serving.transport.server import TransportServer

Held = dict[str, int]


def tables(holder: object, *excluded: str) -> Held:
    """How many entries each table of an object has; those named `excluded` are not counted."""
    kind, names = type(holder).__name__, getattr(holder, "__mypyc_attrs__", None) or vars(holder)
    return {
        f"{kind}.{name}": len(table)
        for name, table in ((name, getattr(holder, name)) for name in names)
        if isinstance(table, dict | list | set | deque) and name not in excluded
    }


def in_worker(worker: Worker) -> Held:
    """Names of sessions that are over are remembered, but no more than `MAX_RELEASED`."""
    registry = worker.session_registry
    return {
        **tables(worker),
        **tables(registry, "newest_attempt", "released"),
        **tables(worker.reservations),
        **tables(worker.kv_accounting),
        "open sessions": len(registry.newest_attempt.keys() - registry.released.keys()),
        "remembered names beyond the limit": max(0, len(registry.released) - MAX_RELEASED),
        "reserved tokens": worker.kv_accounting.used_tokens,
    }


def in_device(device: Device) -> Held:
    return tables(device) | (in_worker(device.local_worker) if device.local_worker else {})


def in_node(node: Any) -> Held:
    return in_device(node) if isinstance(node, Device) else in_worker(node)


def in_chip(executor: Any, tensors: Any) -> Held:
    """The caches of an engine, or of the fake pair, and the tensors that wait to be used."""
    caches = executor.caches if hasattr(executor, "caches") else executor.cache
    return {"caches": len(caches), "tensors": len(tensors or ())}


def in_driver(driver: RealTimeDriver) -> Held:
    """Scheduled events, and work in progress."""
    return {"events": len(driver._heap), "work": driver._num_in_flight}


def in_streams(host: NodeHost) -> Held:
    """Messages that wait to leave. A stream that is open holds nothing else of a session that is over."""
    return {"messages to send": sum(len(connection.outbox._queue) for connection in _connections(host))}


def open_streams(host: NodeHost) -> Held:
    """Hosts that are connected, and those that left not long ago, whose tensors are kept until `limits.linger_s`."""
    servers = [each for each in host._transports if isinstance(each, TransportServer)]
    return {"streams": len(_connections(host)), "streams that linger": sum(len(each._lingering) for each in servers)}


def num_transport_sessions(host: NodeHost) -> int:
    """Sessions whose owner the transport remembers: where a `Release` was lost, until the owner starts again. Their
    number is bounded by `limits.sessions_per_node` a device.
    """
    return sum(each.owners.num_sessions for each in host._transports if isinstance(each, TransportServer))


def _connections(host: NodeHost) -> list[Any]:
    servers = [each for each in host._transports if isinstance(each, TransportServer)]
    return [connection for each in servers for connection in each._connections.connections]
