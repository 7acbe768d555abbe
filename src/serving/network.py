"""A link between two places, and the channel of one direction of it."""

from dataclasses import dataclass, field
from math import isfinite
from statistics import NormalDist
from typing import Literal, Protocol, TypeAlias

from serving.evidence import check_sources
from serving.luck import luck

Direction: TypeAlias = Literal["up", "down"]

_HALF_NORMAL = NormalDist()
_LONGEST_TIMEOUT_S = 60.0

_FIGURES = frozenset(
    ("uplink_mbps", "downlink_mbps", "delay_ms", "jitter_ms", "loss", "overhead_nbytes", "message_ms", "timeout_ms")
)


class Rate(Protocol):
    """How fast bits leave: constant here, a trace or one with outages elsewhere."""

    def sent(self, nbytes: float, start: float) -> float:
        """When the last of `nbytes` has left if the first leaves at `start`; infinite when the link stays down."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """A rate that never changes."""

    mbps: float

    def sent(self, nbytes: float, start: float) -> float:
        return start + nbytes * 8e-6 / self.mbps


@dataclass(frozen=True)
class Link:
    """Bandwidth both ways, and what each message costs besides its bytes. Mbit/s are 10^6 bits of payload a second."""

    uplink_mbps: float
    downlink_mbps: float
    delay_ms: float = 0.0
    """Propagation, one way."""
    jitter_ms: float = 0.0
    """Uniform: added delay in [0, jitter_ms). Half-normal: of this standard deviation before folding."""
    jitter_shape: Literal["uniform", "half_normal"] = "uniform"
    loss: float = 0.0
    """Share of messages' transmissions that are lost; the transport repeats them after a timeout."""
    overhead_nbytes: int = 0
    """Headers and framing a message."""
    message_ms: float = 0.0
    """Serialisation and stack traversal a message, both ends together."""
    timeout_ms: float = 200.0
    """Retransmission timeout after the first loss; doubles with each further one (RFC 6298), 60 s at most."""
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_sources("network", self.sources, _FIGURES)
        for name in ("uplink_mbps", "downlink_mbps"):
            if not (getattr(self, name) > 0 and isfinite(getattr(self, name))):
                raise ValueError(
                    f"network.{name}={getattr(self, name)} Mbit/s must be more than 0 and finite. "
                    "For a device without a cloud use policy=edge_centric; for a perfect link network=ideal."
                )
        for name in ("delay_ms", "jitter_ms", "overhead_nbytes", "message_ms", "timeout_ms"):
            if not (getattr(self, name) >= 0 and isfinite(getattr(self, name))):
                raise ValueError(f"network.{name}={getattr(self, name)} must be 0 or more, and finite.")
        if not 0 <= self.loss < 1:
            raise ValueError(f"network.loss={self.loss} must be a share of messages, from 0 to below 1.")
        if self.jitter_shape not in ("uniform", "half_normal"):
            raise ValueError(f"network.jitter_shape={self.jitter_shape!r} must be uniform or half_normal.")

    @property
    def described(self) -> str:
        """The figures in a line."""
        return (
            f"{self.uplink_mbps:g} Mbit/s up, {self.downlink_mbps:g} Mbit/s down, {self.delay_ms:g} ms delay, "
            f"{self.jitter_ms:g} ms jitter, {self.loss:.1%} lost"
        )

    def rate(self, direction: Direction) -> Rate:
        return Constant(self.uplink_mbps if direction == "up" else self.downlink_mbps)

    def seconds(self, nbytes: float, direction: Direction) -> float:
        """A lone message's way through an empty link, without jitter and loss: for estimates, not for arrivals."""
        return self.rate(direction).sent(nbytes + self.overhead_nbytes, 0.0) + (self.delay_ms + self.message_ms) / 1e3

    def channel(self, direction: Direction, stream: int) -> "Channel":
        """A fresh channel; `stream` (from `serving.luck.key`) decides its jitter and losses."""
        return Channel(self, self.rate(direction), stream)


class Channel:
    """One direction of one device's link: first in, first out, over a reliable ordered transport.

    A message leaves after those before it, travels, is jittered, and never overtakes. A lost transmission is sent
    again: its bytes occupy the link once more, and the message waits for the timeout; those behind it wait too, as
    they do in one TCP stream. Luck is keyed by the message's number, so two policies meet the same link.
    """

    def __init__(self, link: Link, rate: Rate, stream: int) -> None:
        self._link, self._rate, self._stream = link, rate, stream
        self._delay_s = (link.delay_ms + link.message_ms) / 1e3
        self._serial = 0
        self.free_s = 0.0
        """When the last bit of the messages accepted so far has left."""
        self.arrived_s = 0.0
        """When the last of them arrives."""

    def arrive(self, nbytes: float, now: float) -> float:
        """When a message handed over at `now` arrives; calls come in order of `now`."""
        link, serial = self._link, self._serial
        self._serial += 1
        wire = nbytes + link.overhead_nbytes
        losses = self._losses(serial) if link.loss else 0
        self.free_s = self._rate.sent(wire * (1 + losses), max(now, self.free_s))
        late_s = self._delay_s
        if link.jitter_ms:
            late_s += self._jitter_s(serial)
        if losses:
            late_s += sum(min(link.timeout_ms / 1e3 * 2**n, _LONGEST_TIMEOUT_S) for n in range(losses))
        self.arrived_s = max(self.arrived_s, self.free_s + late_s)
        return self.arrived_s

    def _losses(self, serial: int) -> int:
        losses = 0
        while luck(self._stream, serial, f"loss {losses}") < self._link.loss:
            losses += 1
        return losses

    def _jitter_s(self, serial: int) -> float:
        chance = luck(self._stream, serial, "jitter")
        if self._link.jitter_shape == "uniform":
            return chance * self._link.jitter_ms / 1e3
        return _HALF_NORMAL.inv_cdf(0.5 + chance / 2) * self._link.jitter_ms / 1e3
