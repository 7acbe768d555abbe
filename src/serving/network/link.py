"""A link between two places, and the channel of one direction of it.

A way over several links, as between nodes of distant tiers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from statistics import NormalDist
from typing import Literal, Protocol

from serving.core.keyed_random import key, substream, uniform, uniform_at
from serving.core.provenance import check_sources
from serving.network.outages import OutageCursor, OutageInterval, OutageSchedule, is_disconnection
from serving.network.rate import ConstantRate, LinkCapacity, LinkDelay, TrafficDirection, TransmitRate

_HALF_NORMAL = NormalDist()
_LONGEST_TIMEOUT_S = 60.0

_AMOUNTS = ("delay_ms", "jitter_ms", "overhead_nbytes", "message_ms", "timeout_ms", "detect_ms")
_FIGURES = frozenset(("uplink_mbps", "downlink_mbps", "uplink", "downlink", "delay", "loss", "outages", *_AMOUNTS))


@dataclass(frozen=True)
class Link:
    """Bandwidth both ways, and what each message costs besides its bytes. Mbit/s are 10^6 bits of payload a second."""

    uplink_mbps: float | None = None
    downlink_mbps: float | None = None
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
    uplink: LinkCapacity | None = None
    """Instead of uplink_mbps: a rate that changes, from a recording for instance."""
    downlink: LinkCapacity | None = None
    delay: LinkDelay | None = None
    """On top of delay_ms: a delay that changes, either way."""
    outages: OutageSchedule | None = None
    """When the link is down, both directions of a device at once; no bits leave, and the clock of a trace runs on."""
    detect_ms: float = 1000.0
    """How long after it went down both ends know, as by a keep-alive. An outage that is over by then only delays; a
    longer one breaks the connection, and what has not arrived when that is noticed is gone."""
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_sources("network", self.sources, _FIGURES)
        self._check_capacity("up", self.uplink_mbps, self.uplink)
        self._check_capacity("down", self.downlink_mbps, self.downlink)
        for name in _AMOUNTS:
            if not (getattr(self, name) >= 0 and isfinite(getattr(self, name))):
                raise ValueError(f"network.{name}={getattr(self, name)} must be 0 or more, and finite.")
        if not 0 <= self.loss < 1:
            raise ValueError(f"network.loss={self.loss} must be a share of messages, from 0 to below 1.")
        if self.jitter_shape not in ("uniform", "half_normal"):
            raise ValueError(f"network.jitter_shape={self.jitter_shape!r} must be uniform or half_normal.")

    def _check_capacity(self, direction: TrafficDirection, mbps: float | None, capacity: LinkCapacity | None) -> None:
        name = f"{direction}link"
        if (mbps is None) == (capacity is None):
            given = "neither is" if mbps is None else f"both are, {name}_mbps={mbps:g},"
            raise ValueError(
                f"network: one of {name}_mbps (a constant) and {name} (a trace) must be given; {given} given. "
                "What is not meant is null."
            )
        if mbps is not None and not (mbps > 0 and isfinite(mbps)):
            raise ValueError(
                f"network.{name}_mbps={mbps} Mbit/s must be more than 0 and finite. "
                "For a device without a cloud use policy=edge_centric; for a perfect link network=ideal."
            )
        if capacity is not None and direction not in capacity.directions:
            raise ValueError(
                f"network.{name}: {type(capacity).__name__} says nothing of what an {name} can carry; "
                f"set {name}_mbps, or {name} to another trace."
            )

    @property
    def described(self) -> str:
        """The figures in a line."""
        up = self.uplink.described if self.uplink else f"{self.uplink_mbps:g} Mbit/s"
        down = self.downlink.described if self.downlink else f"{self.downlink_mbps:g} Mbit/s"
        delay = f", {self.delay.described}" if self.delay else ""
        outages = f", {self.outages.described}, noticed after {self.detect_ms / 1e3:g} s" if self.outages else ""
        return (
            f"{up} up, {down} down, {self.delay_ms:g} ms delay{delay}, "
            f"{self.jitter_ms:g} ms jitter, {self.loss:.1%} lost{outages}"
        )

    def mean_mbps(self, direction: TrafficDirection) -> float:
        capacity, mbps = self._capacity(direction)
        return capacity.mean_mbps if capacity else mbps

    def rate(self, direction: TrafficDirection, stream: int = 0) -> TransmitRate:
        """How fast bits leave on the link of the device with this `stream`, were it never down."""
        capacity, mbps = self._capacity(direction)
        return capacity.rate(direction, stream) if capacity else ConstantRate(mbps)

    def mean_transfer_s(self, nbytes: float, direction: TrafficDirection) -> float:
        """A lone message's way through an empty link at its mean rate, without what changes by luck or time."""
        leaves_s = ConstantRate(self.mean_mbps(direction)).departure_s(nbytes + self.overhead_nbytes, 0.0)
        return leaves_s + (self.delay_ms + self.message_ms) / 1e3

    def channel(self, direction: TrafficDirection, stream: int) -> "Channel":
        """A fresh channel of the device with this `stream` (from `serving.core.keyed_random.key`), the same for both
        directions.
        """
        return Channel(self, direction, stream)

    def outage_intervals(self, stream: int) -> Iterator[OutageInterval]:
        """(goes down, comes back) in seconds, in order, perhaps without end: when that device's link is down."""
        return self.outages.outage_intervals(stream) if self.outages else iter(())

    def disconnections(self, stream: int) -> Iterator[OutageInterval]:
        """(lost, joined) in seconds, in order, perhaps without end: when both ends hear of that device's outages.

        Outages that are over before anybody notices are not among them.
        """
        detect_s = self.detect_ms / 1e3
        if self.outages is None or not is_disconnection((0.0, self.outages.max_duration_s), detect_s):
            return iter(())
        windows = self.outages.outage_intervals(stream)
        return ((down_s + detect_s, up_s) for down_s, up_s in windows if is_disconnection((down_s, up_s), detect_s))

    def _capacity(self, direction: TrafficDirection) -> tuple[LinkCapacity | None, float]:
        """The trace of a direction, or its constant."""
        up = direction == "up"
        return (self.uplink, self.uplink_mbps or 0.0) if up else (self.downlink, self.downlink_mbps or 0.0)


class Channel:
    """One direction of one device's link: first in, first out, over a reliable ordered transport.

    A message leaves after those before it, travels, is jittered, and never overtakes. A lost transmission is sent
    again: its bytes occupy the link once more, and the message waits for the timeout; those behind it wait too, as
    they do in one TCP stream. Luck is keyed by the message's number, so two policies meet the same link.

    An outage that both ends notice breaks the connection: what has not arrived by then, and whatever is said before
    the link is back, never arrives. The channel begins afresh when it is.
    """

    def __init__(self, link: Link, direction: TrafficDirection, stream: int) -> None:
        self._link, self._stream = link, key(stream, direction)
        rate, windows = link.rate(direction, stream), link.outage_intervals(stream)
        self._outages = OutageCursor(windows, link.detect_ms / 1e3) if link.outages else None
        self._departure_s = partial(self._outages.departure_s, rate) if self._outages else rate.departure_s
        self._delay = link.delay.delay(stream) if link.delay else None
        self._delay_s = (link.delay_ms + link.message_ms) / 1e3
        self._jitter_stream, self._jitter_ms = substream(self._stream, "jitter"), link.jitter_ms
        self._uniform = link.jitter_shape == "uniform"
        self._overhead_nbytes = link.overhead_nbytes
        self._is_deterministic = not (link.loss or self._delay or self._outages)
        self._message_index = 0
        self._disconnected_until_s = 0.0
        self.idle_from_s = 0.0
        """When the last bit of the messages that arrive has left."""
        self.last_arrival_s = 0.0
        """When the last of them arrives."""

    def arrival_s(self, nbytes: float, now_s: float) -> float:
        """When a message handed over at `now_s` arrives, infinite if never; calls come in order of `now_s`."""
        serial = self._message_index
        self._message_index += 1
        if not self._is_deterministic:
            return self._unsteady_arrival_s(nbytes, now_s, serial)
        free_s = self.idle_from_s
        free_s = self.idle_from_s = self._departure_s(
            nbytes + self._overhead_nbytes, now_s if now_s > free_s else free_s
        )
        arrived_s = free_s + (self._delay_s + self._jitter_s(serial) if self._jitter_ms else self._delay_s)
        if arrived_s > self.last_arrival_s:
            self.last_arrival_s = arrived_s
        return self.last_arrival_s

    def _unsteady_arrival_s(self, nbytes: float, now: float, message_index: int) -> float:
        """Over a link that loses messages, is down at times, or has a recorded delay."""
        link = self._link
        if now < self._disconnected_until_s:
            return inf
        losses = self._losses(message_index) if link.loss else 0
        free_s = self._departure_s((nbytes + link.overhead_nbytes) * (1 + losses), max(now, self.idle_from_s))
        late_s = self._delay_s + (self._jitter_s(message_index) if link.jitter_ms else 0.0)
        if self._delay:
            late_s += self._delay(free_s)
        if losses:
            late_s += sum(min(link.timeout_ms / 1e3 * 2**n, _LONGEST_TIMEOUT_S) for n in range(losses))
        arrived_s = max(self.last_arrival_s, free_s + late_s)
        if self._outages and (mended_s := self._outages.reconnected_s(now, arrived_s)):
            self._disconnected_until_s = mended_s
            return inf
        self.idle_from_s, self.last_arrival_s = free_s, arrived_s
        return arrived_s

    def _losses(self, message_index: int) -> int:
        losses = 0
        while uniform(self._stream, message_index, f"loss {losses}") < self._link.loss:
            losses += 1
        return losses

    def _jitter_s(self, message_index: int) -> float:
        chance = uniform_at(self._jitter_stream, message_index)
        if self._uniform:
            return chance * self._jitter_ms / 1e3
        return _HALF_NORMAL.inv_cdf(0.5 + chance / 2) * self._jitter_ms / 1e3


class _LinkDirection(Protocol):
    def arrival_s(self, nbytes: float, now_s: float) -> float: ...


class MultiLinkChannel:
    """A message queues for the sender's `own` wire; each of the `further` links, nobody's own, takes the time that a
    lone message takes at its mean rate. Messages keep their order.
    """

    def __init__(self, first_channel: _LinkDirection, next_links: Sequence[tuple["Link", TrafficDirection]]) -> None:
        self._first_channel = first_channel
        self._delay_s = sum(link.mean_transfer_s(0, direction) for link, direction in next_links)
        self._s_per_byte = sum(
            link.mean_transfer_s(1, direction) - link.mean_transfer_s(0, direction) for link, direction in next_links
        )
        self._last_arrival_s = 0.0

    def arrival_s(self, nbytes: float, now_s: float) -> float:
        """When a message handed over at `now_s` arrives, infinite if never; calls come in order of `now_s`."""
        at_s = self._first_channel.arrival_s(nbytes, now_s) + self._delay_s + nbytes * self._s_per_byte
        if at_s < float("inf"):
            self._last_arrival_s = at_s = max(at_s, self._last_arrival_s)
        return at_s
