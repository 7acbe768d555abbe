"""A link's capacity as somebody recorded it in a file."""

from dataclasses import dataclass
from typing import ClassVar

from serving.network.loop import Loop, Replay
from serving.network.rate import Direction
from serving.network.recording import Recording


@dataclass(frozen=True, kw_only=True)
class Trace(Recording[Loop]):
    """A recording of what one direction carried: a `serving.network.link.Capacity`."""

    directions: ClassVar[tuple[Direction, ...]] = ("up", "down")

    @property
    def mean_mbps(self) -> float:
        return self.content.mean_mbps

    @property
    def described(self) -> str:
        return f"{self.mean_mbps:.3g} Mbit/s on average ({self.file})"

    def rate(self, direction: Direction, stream: int) -> Replay:  # noqa: ARG002 - the protocol's argument
        return Replay(self.content, self.share(stream) * self.content.period_s)
