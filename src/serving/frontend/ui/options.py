"""How the page is set up."""

from dataclasses import dataclass
from typing import ClassVar

from serving.drivers.real_time import Pace
from serving.frontend.openai.options import ServerOptions


@dataclass(frozen=True)
class UiOptions(ServerOptions):
    """A door, and how time is made behind it. Raises ValueError for a value outside its range."""

    port: int = 8080
    pace: Pace = "hardware"
    """Work lasts as long as on the named chips; wall: as long as here, and no energy is known."""
    shaped: bool = True
    """Messages take the named link's time."""
    max_runs: int = 2
    """At once, each on a device of its own, as far as the testbed has so many; others wait in line."""
    max_tokens: int = 512
    """That one run may write."""
    remote_cloud: bool = False
    """The cloud is another process, at service.cloud, which serves the first policy."""
    max_body_nbytes: int = 1 << 18
    section: ClassVar[str] = "service.page"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_minimum(max_runs=1, max_tokens=1)
