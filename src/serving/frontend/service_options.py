"""How the processes of a deployment are set up: where a cloud listens, which device this is, who may talk."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.deployment.topology import Topology
from serving.drivers.real_time import Pace
from serving.frontend.openai.options import EndpointOptions
from serving.frontend.ui.options import UiOptions
from serving.transport.limits import Limits
from serving.transport.security import Security


@dataclass(frozen=True)
class HealthOptions:
    """Where a cloud tells how it is. Raises ValueError for a port outside its range."""

    host: str = "127.0.0.1"
    port: int | None = 7071
    """0: any free port; null: it tells nobody."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("service.health.host is empty; give 127.0.0.1 for this machine alone")
        if not 0 <= (self.port or 0) <= 65535:
            raise ValueError(f"service.health.port is {self.port}; it is 0 (any free port) to 65535, or null for none")


@dataclass(frozen=True)
class ServiceOptions:
    """Shared by the cloud and its devices, so that one configuration describes both.

    `cloud` is where the cloud listens, and where devices dial it: host:port. `device` is which of the testbed's devices
    a device process is, counted from 0. With `pace` hardware work lasts as long as on the named chips, and with
    `shaped` messages take as long as on the named link.
    """

    cloud: str = "127.0.0.1:7070"
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Where the nodes of a testbed's tiers listen, by their names, such as nano-0: host:port."""
    node: str | None = None
    """Which of them a cloud process is."""
    device: int = 0
    pace: Pace = "wall"
    shaped: bool = False
    timeout_s: float = 30.0
    """A device that has heard nothing for so long asks again, later each time."""
    context_tokens: int | None = None
    """Of a prompt and its answer together; None: as many as both models and the cloud's cache take."""
    grace_s: float = 5.0
    """How long answers may still take once the process is told to stop."""
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
        kept = self.endpoint.cached_conversations, self.endpoint.routing.cached_sessions
        if sum(kept) > self.limits.sessions_per_node:
            raise ValueError(
                f"service.endpoint.cached_conversations is {kept[0]} and service.endpoint.routing.cached_sessions {kept[1]}, but the "
                f"cloud keeps service.limits.sessions_per_node={self.limits.sessions_per_node} of one device; keep fewer, or allow more"
            )

    def addresses(self, topology: Topology) -> dict[str, str]:
        """Where each node of the cloud listens. Raises ValueError for a node of a tier that has no address here, for an
        address of none, and for one of two.
        """
        workers = topology.workers if topology.setup.hardware.tiers else ()
        if strangers := sorted(self.nodes.keys() - workers):
            known = ", ".join(workers) or "none, because it has no tiers"
            raise ValueError(
                f"service.nodes names {', '.join(strangers)}; the nodes of this testbed's tiers are {known}"
            )
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
        """The nodes of the cloud that this process is. Raises ValueError where it does not say which."""
        if not topology.setup.hardware.tiers:
            return topology.cloud_processes[0]
        if self.node not in topology.workers:
            raise ValueError(
                f"service.node is {self.node!r}; say which node of the tiers this process is: {', '.join(topology.workers)}"
            )
        return (self.node,)


def deployment_digest(topology: Topology) -> str:
    """Names what a cloud and its devices must agree on: what hosts of any run must, and how many devices there are."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", topology.setup.policy.name)[:64]
    return f"{name}/{len(topology.devices)}-devices-{topology.digest}"
