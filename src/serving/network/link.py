"""A link between two hosts, as a configuration describes it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from serving.core.keyed_random import key
from serving.core.provenance import check_sources
from serving.network.channel import Channel
from serving.network.outages import OutageCursor, OutageInterval, OutageSchedule, is_disconnection
from serving.network.radio import Radio
from serving.network.rate import ConstantRate, LinkCapacity, LinkDelay, TrafficDirection, TransmitRate
from serving.network.trace import LinkRecording

_AMOUNTS = ("delay_ms", "jitter_ms", "overhead_nbytes", "message_ms", "timeout_ms", "detect_ms")
_FIGURES = frozenset(("uplink_mbps", "downlink_mbps", "uplink", "downlink", "delay", "loss", "outages", *_AMOUNTS))


@dataclass(frozen=True)
class Link:
    """Rate in both directions and other costs of a message. Mbit/s are 10^6 payload bits per second."""

    uplink_mbps: float | None = None
    downlink_mbps: float | None = None
    delay_ms: float = 0.0
    """Propagation, one way."""
    jitter_ms: float = 0.0
    """Uniform: added delay in [0, jitter_ms). Half-normal: |N(0, jitter_ms)|."""
    jitter_shape: Literal["uniform", "half_normal"] = "uniform"
    loss: float = 0.0
    """Share of transmissions that are lost; the transport resends them after a timeout."""
    overhead_nbytes: int = 0
    """Headers and framing per message."""
    message_ms: float = 0.0
    """Serialisation and network stack per message, both ends together."""
    timeout_ms: float = 200.0
    """Retransmission timeout after the first loss; doubles with each further loss (RFC 6298), at most 60 s."""
    uplink: LinkCapacity | None = None
    """In place of uplink_mbps: a rate that changes, for example from a recording."""
    downlink: LinkCapacity | None = None
    delay: LinkDelay | None = None
    """Added to delay_ms: a delay that changes, for both directions."""
    outages: OutageSchedule | None = None
    """Times at which a device's link is down in both directions; no bits leave, and the clock of a trace runs on."""
    detect_ms: float = 1000.0
    """Time until both ends notice an outage, as by a keep-alive.

    A shorter outage only delays messages. A longer one breaks the connection: messages that have not arrived when it is
    noticed are lost.
    """
    radio: Radio | None = None
    """What the device's radio draws; None: not known, and then neither is its energy."""
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_sources("network", self.sources, _FIGURES)
        self._check_files()
        self._check_capacity("up", self.uplink_mbps, self.uplink)
        self._check_capacity("down", self.downlink_mbps, self.downlink)
        for name in _AMOUNTS:
            if not (getattr(self, name) >= 0 and isfinite(getattr(self, name))):
                raise ValueError(f"network.{name}={getattr(self, name)} must be 0 or more, and finite.")
        if not 0 <= self.loss < 1:
            raise ValueError(f"network.loss={self.loss} must be a share of transmissions, from 0 to below 1.")
        if self.jitter_shape not in ("uniform", "half_normal"):
            raise ValueError(f"network.jitter_shape={self.jitter_shape!r} must be uniform or half_normal.")

    def _check_files(self) -> None:
        """Names every recording without its file, and no other."""
        found = [(name, getattr(self, name)) for name in ("uplink", "downlink", "delay")]
        missing = [(name, one) for name, one in found if isinstance(one, LinkRecording) and one.path is None]
        if missing:
            kinds = " and ".join(dict.fromkeys(type(one).__name__ for _, one in missing))
            options = " ".join(f"network.{name}.path=FILE" for name, _ in missing)
            raise ValueError(f"network: {kinds} is read from a file, and none is given; set {options}.")

    def _check_capacity(self, direction: TrafficDirection, mbps: float | None, capacity: LinkCapacity | None) -> None:
        name = f"{direction}link"
        if (mbps is None) == (capacity is None):
            given = "neither is" if mbps is None else f"both are, {name}_mbps={mbps:g},"
            raise ValueError(
                f"network: one of {name}_mbps (a constant) and {name} (a trace) must be given; {given} given. "
                "Set the other to null."
            )
        if mbps is not None and not (mbps > 0 and isfinite(mbps)):
            raise ValueError(
                f"network.{name}_mbps={mbps} Mbit/s must be more than 0 and finite. "
                "For a device without a cloud use policy=edge_centric; for a perfect link network=ideal."
            )
        if capacity is not None and direction not in capacity.directions:
            raise ValueError(
                f"network.{name}: {type(capacity).__name__} has no rate of an {name}; "
                f"set {name}_mbps, or {name} to another trace."
            )

    @property
    def described(self) -> str:
        up = self.uplink.described if self.uplink else f"{self.uplink_mbps:g} Mbit/s"
        down = self.downlink.described if self.downlink else f"{self.downlink_mbps:g} Mbit/s"
        delay = f", {self.delay.described}" if self.delay else ""
        outages = f", {self.outages.described}, noticed after {self.detect_ms / 1e3:g} s" if self.outages else ""
        return (
            f"{up} up, {down} down, {self.delay_ms:g} ms delay{delay}, {self.jitter_ms:g} ms jitter, "
            f"{self.overhead_nbytes} bytes and {self.message_ms:g} ms a message, {self.loss:.1%} lost{outages}"
        )

    def mean_mbps(self, direction: TrafficDirection) -> float:
        capacity, mbps = self._capacity(direction)
        return capacity.mean_mbps if capacity else mbps

    def rate(self, direction: TrafficDirection, stream: int = 0) -> TransmitRate:
        """Rate of the link of the device with this `stream`, outages ignored."""
        capacity, mbps = self._capacity(direction)
        return capacity.rate(direction, stream) if capacity else ConstantRate(mbps)

    def mean_transfer_s(self, nbytes: float, direction: TrafficDirection) -> float:
        """Seconds of a message through an empty link at its mean rate and delay, without loss, jitter and outages."""
        departure_s = ConstantRate(self.mean_mbps(direction)).departure_s(nbytes + self.overhead_nbytes, 0.0)
        recorded_s = self.delay.mean_s if self.delay else 0.0
        return departure_s + (self.delay_ms + self.message_ms) / 1e3 + recorded_s

    def channel(self, direction: TrafficDirection, stream: int) -> Channel:
        """Creates a channel of the device with this `stream` (from `serving.core.keyed_random.key`)."""
        detect_s = self.detect_ms / 1e3
        return Channel(
            self.rate(direction, stream),
            key(stream, direction),
            (self.delay_ms + self.message_ms) / 1e3,
            self.jitter_ms,
            self.jitter_shape == "uniform",
            self.overhead_nbytes,
            self.loss,
            self.timeout_ms / 1e3,
            self.delay.delay(stream) if self.delay else None,
            OutageCursor(self.outages.outage_intervals(stream), detect_s) if self.outages else None,
        )

    def outage_intervals(self, stream: int) -> Iterator[OutageInterval]:
        """Yields (down, up) seconds in order, possibly endless: when this device's link is down."""
        return self.outages.outage_intervals(stream) if self.outages else iter(())

    def disconnections(self, stream: int) -> Iterator[OutageInterval]:
        """Yields (lost, restored) seconds in order, possibly endless: the outages that both ends notice."""
        detect_s = self.detect_ms / 1e3
        if self.outages is None or not is_disconnection((0.0, self.outages.max_duration_s), detect_s):
            return iter(())
        outages = self.outages.outage_intervals(stream)
        return ((down_s + detect_s, up_s) for down_s, up_s in outages if is_disconnection((down_s, up_s), detect_s))

    def _capacity(self, direction: TrafficDirection) -> tuple[LinkCapacity | None, float]:
        """Returns the trace of a direction (or None) and its constant rate."""
        up = direction == "up"
        return (self.uplink, self.uplink_mbps or 0.0) if up else (self.downlink, self.downlink_mbps or 0.0)
