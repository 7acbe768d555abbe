"""State monitoring (HAT, section 3.2): moving averages of what nodes see for themselves, whatever runtime they are in.

No two hosts share a clock. A message says when its sender sent it; what its way took beyond that of the quickest
message so far is the time that its bytes took.
"""

from dataclasses import dataclass, field

from serving.messages import HEADER_NBYTES, Condition, Request

ALPHA = 0.8
"""The share of the past in a moving average (HAT, section 3.2)."""
LEAST_NBYTES = 4096
"""A message that is larger than the quickest one by less says nothing of a rate: its way is delay and jitter."""
_SCALE_ROWS = 256.0
"""At so many rows a batch's error tells as much of the slope as of the constant."""


@dataclass(slots=True)
class Average:
    """Eq. 1: alpha of the past and the rest of what is seen; the first value seen begins it."""

    value: float | None = None

    def see(self, value: float) -> None:
        self.value = value if self.value is None else ALPHA * self.value + (1 - ALPHA) * value


@dataclass(slots=True)
class Delay:
    """g, the time of a batch by its rows: base_s + row_s x.

    Eq. 2 says what g becomes at the batch that was seen, and nothing of other sizes. Of all straight lines with that
    value there we take the one nearest to the old (normalised least mean squares), none of them falling.
    """

    base_s: float = 0.0
    row_s: float = 0.0
    seen: bool = False

    def at(self, rows: float) -> float:
        return self.base_s + self.row_s * rows

    def see(self, rows: float, took_s: float) -> None:
        if not self.seen:
            self.base_s, self.seen = took_s, True
            return
        x = rows / _SCALE_ROWS
        step = (1 - ALPHA) * (took_s - self.at(rows)) / (1 + x * x)
        self.base_s = max(0.0, self.base_s + step)
        self.row_s = max(0.0, self.row_s + step * x / _SCALE_ROWS)


@dataclass(slots=True)
class Rate:
    """Bytes a second of one direction of a link, as its receiver sees it."""

    nbytes_per_s: float | None = None
    _quickest_s: float = float("inf")
    _quickest_nbytes: int = 0
    _heard_s: float = float("-inf")

    def hear(self, nbytes: int, sent_s: float, now: float) -> None:
        """A message of `nbytes` that was sent at `sent_s`, by the sender's clock; messages keep their order, so that
        one that comes right behind another has waited for it.
        """
        way_s = now - sent_s
        begun_s = max(sent_s + self._quickest_s, self._heard_s)
        queued, took_s = begun_s > sent_s + self._quickest_s, now - begun_s
        more = nbytes if queued else nbytes - self._quickest_nbytes
        self._heard_s = now
        if way_s < self._quickest_s:
            self._quickest_s, self._quickest_nbytes = way_s, nbytes
        elif more >= LEAST_NBYTES and took_s > 0:
            found = more / took_s
            past = self.nbytes_per_s
            self.nbytes_per_s = found if past is None else ALPHA * past + (1 - ALPHA) * found

    @property
    def mbps(self) -> float:
        """0: not known yet."""
        return 8e-6 * (self.nbytes_per_s or 0.0)


@dataclass(slots=True)
class Workload:
    """What a node of the cloud sees: its batches, and the uplinks of those who ask."""

    tokens: Average = field(default_factory=Average)
    delay: Delay = field(default_factory=Delay)
    uplinks: dict[str, Rate] = field(default_factory=dict)

    def batch(self, rows: int, took_s: float) -> None:
        self.tokens.see(float(rows))
        self.delay.see(rows, took_s)

    def hear(self, m: Request, now: float) -> None:
        """A request came; of one that comes from its device the uplink is seen."""
        if m.sent_s is not None and (m.hop == 0 or m.path[m.hop - 1] == m.reply_to):
            uplink = self.uplinks.setdefault(m.reply_to, Rate())
            uplink.hear(HEADER_NBYTES + m.rows.nbytes, m.sent_s, now)

    def added(self, m: Request) -> Condition:
        """What this node and those before it say."""
        before, delay = m.condition, self.delay
        if before is None:
            uplink = self.uplinks.get(m.reply_to)
            return Condition(self.tokens.value or 0.0, delay.base_s, delay.row_s, 1, uplink.mbps if uplink else 0.0)
        return Condition(
            before.tokens, before.base_s + delay.base_s, before.row_s + delay.row_s, before.nodes + 1,
            before.uplink_mbps,
        )  # fmt: skip


@dataclass(slots=True)
class Monitor:
    """What a device knows when it decides; None and 0 where nothing was seen yet."""

    row_nbytes: int = 0
    """A: bytes of one token's hidden state on the link."""
    step: Average = field(default_factory=Average)
    """gamma: seconds of one drafting step."""
    downlink: Rate = field(default_factory=Rate)
    condition: Condition | None = None
    hop: Delay = field(default_factory=Delay)
    """The time of a hop on the device itself, by its rows."""
    chip_free_s: float = 0.0
    """When the chip last ended something."""

    def drafted(self, steps: int, begun_s: float, now: float) -> None:
        """So many drafting steps were asked for at `begun_s` and are done; the chip may have had to end something."""
        if steps:
            self.step.see((now - max(begun_s, self.chip_free_s)) / steps)

    def heard(self, nbytes: int, sent_s: float | None, condition: Condition | None, now: float) -> None:
        """Something came from the cloud."""
        if sent_s is not None:
            self.downlink.hear(nbytes, sent_s, now)
        self.condition = condition or self.condition
