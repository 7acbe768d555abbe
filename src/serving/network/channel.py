"""One direction of a link while it is used, a path over several links, and the table of a run's links."""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from statistics import NormalDist
from typing import Protocol

from serving.core.keyed_random import substream, uniform, uniform_at
from serving.network.outages import OutageCursor
from serving.network.rate import TrafficDirection, TransmitRate

_HALF_NORMAL = NormalDist()
_LONGEST_TIMEOUT_S = 60.0
_MAX_DOUBLINGS = 64
"""Of a timeout; a float holds no more than 1,023."""


class Channel:
    """One direction of one device's link: first in, first out, over a reliable ordered transport.

    Messages leave in order and never overtake. A lost transmission is resent: its bytes occupy the link again, and the
    message and those behind it wait for the timeout, as in one TCP stream. Random numbers are keyed by the message's
    number, so that two policies meet the same link.

    An outage that both ends notice breaks the connection: messages that have not arrived by then, and messages sent
    before the link is back, never arrive. Then the channel starts empty.
    """

    def __init__(
        self,
        rate: TransmitRate,
        stream: int,
        delay_s: float,
        jitter_ms: float,
        has_uniform_jitter: bool,
        overhead_nbytes: int,
        loss: float,
        timeout_s: float,
        added_delay_s: Callable[[float], float] | None,
        outages: OutageCursor | None,
    ) -> None:
        """`added_delay_s`: departure -> delay beside `delay_s`, both seconds. The rest is explained at `Link`."""
        self._stream, self._outages, self._added_delay_s = stream, outages, added_delay_s
        self._departure_s = partial(outages.departure_s, rate) if outages else rate.departure_s
        self._delay_s, self._loss, self._timeout_s = delay_s, loss, timeout_s
        self._jitter_stream, self._jitter_ms = substream(stream, "jitter"), jitter_ms
        self._has_uniform_jitter = has_uniform_jitter
        self._overhead_nbytes = overhead_nbytes
        self._is_deterministic = not (loss or added_delay_s or outages)
        self._message_index = 0
        self._disconnected_until_s = 0.0
        self.idle_from_s = 0.0
        """When the last bit of the delivered messages has left."""
        self.last_arrival_s = 0.0
        """When the last of the delivered messages arrives."""

    def arrival_s(self, nbytes: float, now_s: float) -> float:
        """When a message sent at `now_s` arrives; infinite if it is lost. Call in order of `now_s`."""
        index = self._message_index
        self._message_index += 1
        if not self._is_deterministic:
            return self._random_arrival_s(nbytes, now_s, index)
        free_s = self.idle_from_s
        free_s = self._departure_s(nbytes + self._overhead_nbytes, now_s if now_s > free_s else free_s)
        self.idle_from_s = free_s
        arrived_s = free_s + (self._delay_s + self._jitter_s(index) if self._jitter_ms else self._delay_s)
        if arrived_s > self.last_arrival_s:
            self.last_arrival_s = arrived_s
        return self.last_arrival_s

    def _random_arrival_s(self, nbytes: float, now: float, message_index: int) -> float:
        """For a link with loss, outages or a recorded delay."""
        if now < self._disconnected_until_s:
            return inf
        losses = self._losses(message_index) if self._loss else 0
        free_s = self._departure_s((nbytes + self._overhead_nbytes) * (1 + losses), max(now, self.idle_from_s))
        late_s = self._delay_s + (self._jitter_s(message_index) if self._jitter_ms else 0.0)
        if self._added_delay_s:
            late_s += self._added_delay_s(free_s)
        if losses:
            late_s += sum(
                min(self._timeout_s * 2.0 ** min(n, _MAX_DOUBLINGS), _LONGEST_TIMEOUT_S) for n in range(losses)
            )
        arrived_s = max(self.last_arrival_s, free_s + late_s)
        if self._outages and (up_s := self._outages.reconnected_s(now, arrived_s)):
            self._disconnected_until_s = up_s
            return inf
        self.idle_from_s, self.last_arrival_s = free_s, arrived_s
        return arrived_s

    def _losses(self, message_index: int) -> int:
        losses = 0
        while uniform(self._stream, message_index, f"loss {losses}") < self._loss:
            losses += 1
        return losses

    def _jitter_s(self, message_index: int) -> float:
        u = uniform_at(self._jitter_stream, message_index)
        if self._has_uniform_jitter:
            return u * self._jitter_ms / 1e3
        return _HALF_NORMAL.inv_cdf(0.5 + u / 2) * self._jitter_ms / 1e3


class _MeanLink(Protocol):
    def mean_transfer_s(self, nbytes: float, direction: TrafficDirection) -> float: ...


class _LinkDirection(Protocol):
    def arrival_s(self, nbytes: float, now_s: float) -> float: ...


def past_arrival(link: object, arrives_s: float, now_s: float) -> ValueError:
    """The error of a link that delivers a message before it was sent, or at no time at all."""
    return ValueError(
        f"{type(link).__name__}.arrival_s returned {arrives_s!r} for a message that was sent at {now_s:.6f} s; it "
        "returns the moment of arrival on the same clock, not a duration"
    )


class MultiLinkChannel:
    """Messages queue for `first_channel`, the sender's own link, and keep their order.

    Each of `next_links`, which are shared, adds the time of a message through an empty link at its mean rate and delay.
    """

    def __init__(self, first_channel: _LinkDirection, next_links: Sequence[tuple[_MeanLink, TrafficDirection]]) -> None:
        self._first_channel = first_channel
        self._delay_s = sum(link.mean_transfer_s(0, direction) for link, direction in next_links)
        self._s_per_byte = sum(
            link.mean_transfer_s(1, direction) - link.mean_transfer_s(0, direction) for link, direction in next_links
        )
        self._last_arrival_s = 0.0

    def arrival_s(self, nbytes: float, now_s: float) -> float:
        """When a message sent at `now_s` arrives; infinite if it is lost. Call in order of `now_s`."""
        at_s = self._first_channel.arrival_s(nbytes, now_s) + self._delay_s + nbytes * self._s_per_byte
        if at_s < float("inf"):
            self._last_arrival_s = at_s = max(at_s, self._last_arrival_s)
        return at_s


class LinkDirection(Protocol):
    """One direction of a link."""

    def arrival_s(self, nbytes: float, now: float) -> float:
        """When a message sent at `now` arrives; infinite: it is lost. Calls come in order of `now`."""
        ...


class LinkTable:
    """Thousands of devices share tens of cloud nodes: the access links take one entry a device, not one a pair."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], LinkDirection] = {}
        """(sender, receiver) -> the link."""
        self._access_links: dict[str, tuple[LinkDirection, LinkDirection]] = {}
        """Node -> the links from it and to it."""

    def connect(self, sender: str, receiver: str, link: LinkDirection) -> None:
        """Messages from `sender` to `receiver` take this link."""
        self._links[sender, receiver] = link

    def connect_access(self, name: str, outgoing: LinkDirection, incoming: LinkDirection) -> None:
        """All messages from and to this node take these links, but those for which `connect` gives another one."""
        self._access_links[name] = outgoing, incoming

    def find(self, sender: str, receiver: str) -> LinkDirection | None:
        """None: messages arrive at once, as those of a node to itself do unless `connect` gives a link."""
        link = self._links.get((sender, receiver))
        if link or sender == receiver:
            return link
        if access := self._access_links.get(sender):
            return access[0]
        access = self._access_links.get(receiver)
        return access[1] if access else None
