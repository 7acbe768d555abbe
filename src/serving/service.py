"""How the processes of a deployment are set up: where a cloud listens, which device this is, who may talk."""

from dataclasses import dataclass, field

from serving.drivers.live import Pace
from serving.endpoint.endpoint import Endpoint
from serving.transport.limits import Limits
from serving.transport.security import Security


@dataclass(frozen=True)
class Service:
    """Shared by the cloud and its devices, so that one configuration describes both.

    `cloud` is where the cloud listens, and where devices dial it: host:port. `device` is which of the testbed's devices
    a device process is, counted from 0. With `pace` hardware work lasts as long as on the named chips, and with
    `shaped` messages take as long as on the named link.
    """

    cloud: str = "127.0.0.1:7070"
    device: int = 0
    pace: Pace = "wall"
    shaped: bool = False
    timeout_s: float = 30.0
    """A device that has heard nothing for so long asks again, later each time."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    security: Security = field(default_factory=Security)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        host, colon, port = self.cloud.rpartition(":")
        if not (host and colon and port.isdigit() and int(port) <= 65535):
            raise ValueError(f"service.cloud is {self.cloud!r}; give host:port, such as 127.0.0.1:7070")
        if self.device < 0:
            raise ValueError(f"service.device is {self.device}; devices are counted from 0")
        if not self.timeout_s > 0:
            raise ValueError(f"service.timeout_s is {self.timeout_s}; it must be more than 0")
