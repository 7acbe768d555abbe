"""Options of the serving processes (`service.*`): addresses, pace, limits, security, and the options of each server."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from serving.deployment.topology import Topology
from serving.drivers.real_time import Pace
from serving.frontend.openai.options import EndpointOptions, HostOptions, ServerOptions
from serving.nodes.device import MAX_IDLE_SESSIONS
from serving.transport.limits import Limits
from serving.transport.security import Security


@dataclass(frozen=True)
class HealthOptions(HostOptions):
    """Where a cloud serves its health pages. Raises ValueError for a port outside its range."""

    port: int | None = 7071
    """0: any free port; null: no health pages."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("service.health.host is empty; give 127.0.0.1 for this machine alone")
        if not 0 <= (self.port or 0) <= 65535:
            raise ValueError(f"service.health.port is {self.port}; it is 0 (any free port) to 65535, or null for none")


@dataclass(frozen=True)
class UiOptions(ServerOptions):
    """The page's server, and the clock and link of the nodes behind it. Raises ValueError for a value outside its
    range.
    """

    port: int = 8080
    pace: Pace = "hardware"
    """hardware: work lasts as long as on the named chips; wall: as long as here, and energy is unknown."""
    shaped: bool = True
    """True: messages take the named link's time."""
    max_runs: int = 2
    """Simultaneous runs, each on a device of its own, at most one per device of the testbed; others wait."""
    max_tokens: int = 512
    """Limit of one run."""
    remote_cloud: bool = False
    """True: the cloud is another process, at service.cloud, which serves the first policy."""
    max_body_nbytes: int = 1 << 18
    section: ClassVar[str] = "service.page"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_minimum(max_runs=1, max_tokens=1)


@dataclass(frozen=True)
class ServiceOptions:
    """Shared by the cloud and its devices: one configuration describes both. Raises ValueError for a value outside its
    range.
    """

    cloud: str = "127.0.0.1:7070"
    """host:port where the cloud listens and devices connect."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """host:port where each node of a testbed's tiers listens, by node name, such as nano-0."""
    node: str | None = None
    """The tier node that a cloud process runs."""
    device: int = 0
    """Index of the testbed's device that a device process runs."""
    pace: Pace = "wall"
    """wall: work lasts as long as here; hardware: as long as on the named chips."""
    shaped: bool = False
    """True: messages take the named link's time."""
    timeout_s: float = 30.0
    """A device repeats its request after this long without a reply, with back-off."""
    context_tokens: int | None = None
    """Tokens of prompt and answer together; None: as many as both models and the cloud's cache take."""
    grace_s: float = 5.0
    """Time that running answers get to finish when the process stops."""
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    page: UiOptions = field(default_factory=UiOptions)
    health: HealthOptions = field(default_factory=HealthOptions)
    security: Security = field(default_factory=Security)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name, address in {"cloud": self.cloud, **{f"nodes.{name}": at for name, at in self.nodes.items()}}.items():
            host, colon, port = address.rpartition(":")
            if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65535):
                raise ValueError(f"service.{name} is {address!r}; give host:port, such as 127.0.0.1:7070")
        if self.device < 0:
            raise ValueError(f"service.device is {self.device}; devices are counted from 0")
        if not self.timeout_s > 0:
            raise ValueError(f"service.timeout_s is {self.timeout_s}; it must be more than 0")
        if self.context_tokens is not None and self.context_tokens < 2:
            raise ValueError(f"service.context_tokens is {self.context_tokens}; give at least 2, or null for all")
        if not self.grace_s >= 0:
            raise ValueError(f"service.grace_s is {self.grace_s}; it is a time in seconds, 0 or more")
        self.check_num_sessions(0)

    def check_num_sessions(self, running: int) -> None:
        """Raises ValueError if a device has more sessions open, running and kept, than a cloud keeps of it."""
        kept, most = self._kept_sessions, self.limits.sessions_per_node
        if running + sum(kept) > most:
            at_a_time = f"workload.max_concurrency is {running}, " if running else ""
            raise ValueError(
                f"{at_a_time}service.endpoint.cached_conversations is {kept[0]} and "
                f"service.endpoint.routing.cached_sessions {kept[1]}, but the cloud keeps "
                f"service.limits.sessions_per_node={most} of one device; keep fewer, or allow more"
            )

    @property
    def _kept_sessions(self) -> tuple[int, int]:
        """Of conversations and of the routing API."""
        return self.endpoint.cached_conversations, self.endpoint.routing.cached_sessions

    @property
    def max_idle_sessions(self) -> int:
        """How many ended sessions keep their caches on a device; the endpoint releases the others."""
        return max(MAX_IDLE_SESSIONS, sum(self._kept_sessions))

    def with_session_tokens(self, max_tokens: int) -> "ServiceOptions":
        """The same for sessions of up to `max_tokens`, which every process of a deployment then accepts."""
        return replace(self, limits=replace(self.limits, max_tokens=max_tokens))

    def addresses(self, topology: Topology) -> dict[str, str]:
        """host:port of each node of the cloud. Raises ValueError for a tier node without an address, an address of an
        unknown node, and an address of two nodes.
        """
        workers = topology.workers if topology.setup.hardware.tiers else ()
        if unknown := sorted(self.nodes.keys() - workers):
            known = ", ".join(workers) or "none, because it has no tiers"
            raise ValueError(f"service.nodes names {', '.join(unknown)}; the nodes of this testbed's tiers are {known}")
        if not workers:
            return {node: self.cloud for names in topology.cloud_processes[:1] for node in names}
        if missing := [name for name in workers if name not in self.nodes]:
            raise ValueError(
                f"service.nodes says nothing of {', '.join(missing)}; say where each node of the tiers listens, as in "
                f"+service.nodes.{missing[0]}=127.0.0.1:7070"
            )
        found = {name: self.nodes[name] for name in workers}
        for name, address in found.items():
            if others := [other for other in found if found[other] == address and other != name]:
                raise ValueError(
                    f"service.nodes: {name} and {others[0]} are both at {address}; each node listens alone"
                )
        return found

    def local_nodes(self, topology: Topology) -> tuple[str, ...]:
        """The cloud nodes of this process. Raises ValueError if `node` is not a node of the testbed's tiers."""
        if not topology.setup.hardware.tiers:
            return topology.cloud_processes[0]
        if self.node not in topology.workers:
            raise ValueError(
                f"service.node is {self.node!r}; say which node of the tiers this process is: "
                f"{', '.join(topology.workers)}"
            )
        return (self.node,)


def deployment_digest(topology: Topology) -> str:
    """Identifies what a cloud and its devices must agree on: the policy, the number of devices, the topology."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", topology.setup.policy.name)[:64]
    return f"{name}/{len(topology.devices)}-devices-{topology.digest}"
