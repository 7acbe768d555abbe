"""State monitoring (HAT, section 3.2): moving averages of what nodes see for themselves, whatever runtime they are in.

No two hosts share a clock. A message says when its sender sent it; what its way took beyond that of the quickest
message so far is the time that its bytes took.
"""

from dataclasses import dataclass, field

from serving.messages import HEADER_NBYTES, PathStats, Request

ALPHA = 0.8
"""The share of the past in a moving average (HAT, section 3.2)."""
MIN_RATE_NBYTES = 4096
"""A message that is larger than the quickest one by less says nothing of a rate: its way is delay and jitter."""
_SCALE_TOKENS = 256.0
"""At so many rows a batch's error tells as much of the slope as of the constant."""


@dataclass(slots=True)
class MovingAverage:
    """Eq. 1: alpha of the past and the rest of what is seen; the first value seen begins it."""

    value: float | None = None

    def update(self, value: float) -> None:
        self.value = value if self.value is None else ALPHA * self.value + (1 - ALPHA) * value


@dataclass(slots=True)
class BatchTimeModel:
    """g, the time of a batch by its rows: base_s + row_s x.

    Eq. 2 says what g becomes at the batch that was seen, and nothing of other sizes. Of all straight lines with that
    value there we take the one nearest to the old (normalised least mean squares), none of them falling.
    """

    base_s: float = 0.0
    per_token_s: float = 0.0
    has_data: bool = False

    def predict(self, num_tokens: float) -> float:
        return self.base_s + self.per_token_s * num_tokens

    def update(self, num_tokens: float, elapsed_s: float) -> None:
        if not self.has_data:
            self.base_s, self.has_data = elapsed_s, True
            return
        x = num_tokens / _SCALE_TOKENS
        step = (1 - ALPHA) * (elapsed_s - self.predict(num_tokens)) / (1 + x * x)
        self.base_s = max(0.0, self.base_s + step)
        self.per_token_s = max(0.0, self.per_token_s + step * x / _SCALE_TOKENS)


@dataclass(slots=True)
class LinkRate:
    """Bytes a second of one direction of a link, as its receiver sees it."""

    nbytes_per_s: float | None = None
    _min_delay_s: float = float("inf")
    _min_delay_nbytes: int = 0
    _last_received_s: float = float("-inf")

    def update(self, nbytes: int, sent_s: float, now: float) -> None:
        """A message of `nbytes` that was sent at `sent_s`, by the sender's clock; messages keep their order, so that
        one that comes right behind another has waited for it.
        """
        way_s = now - sent_s
        begun_s = max(sent_s + self._min_delay_s, self._last_received_s)
        queued, took_s = begun_s > sent_s + self._min_delay_s, now - begun_s
        more = nbytes if queued else nbytes - self._min_delay_nbytes
        self._last_received_s = now
        if way_s < self._min_delay_s:
            self._min_delay_s, self._min_delay_nbytes = way_s, nbytes
        elif more >= MIN_RATE_NBYTES and took_s > 0:
            found = more / took_s
            past = self.nbytes_per_s
            self.nbytes_per_s = found if past is None else ALPHA * past + (1 - ALPHA) * found

    @property
    def mbps(self) -> float:
        """0: not known yet."""
        return 8e-6 * (self.nbytes_per_s or 0.0)


@dataclass(slots=True)
class NodeMonitor:
    """What a node of the cloud sees: its batches, and the uplinks of those who ask."""

    batch_tokens: MovingAverage = field(default_factory=MovingAverage)
    batch_time: BatchTimeModel = field(default_factory=BatchTimeModel)
    uplinks: dict[str, LinkRate] = field(default_factory=dict)

    def record_batch(self, num_tokens: int, elapsed_s: float) -> None:
        self.batch_tokens.update(float(num_tokens))
        self.batch_time.update(num_tokens, elapsed_s)

    def record_request(self, request: Request, now: float) -> None:
        """A request came; of one that comes from its device the uplink is seen."""
        if request.sent_s is not None and (
            request.hop_index == 0 or request.path[request.hop_index - 1] == request.reply_to
        ):
            uplink = self.uplinks.setdefault(request.reply_to, LinkRate())
            uplink.update(HEADER_NBYTES + request.slice.nbytes, request.sent_s, now)

    def path_stats(self, request: Request) -> PathStats:
        """What this node and those before it say."""
        before, delay = request.path_stats, self.batch_time
        if before is None:
            uplink = self.uplinks.get(request.reply_to)
            return PathStats(
                self.batch_tokens.value or 0.0, delay.base_s, delay.per_token_s, 1, uplink.mbps if uplink else 0.0
            )
        return PathStats(
            before.mean_batch_tokens, before.base_s + delay.base_s, before.per_token_s + delay.per_token_s, before.num_nodes + 1,
            before.uplink_mbps,
        )  # fmt: skip


@dataclass(slots=True)
class DeviceMonitor:
    """What a device knows when it decides; None and 0 where nothing was seen yet."""

    hidden_nbytes: int = 0
    """A: bytes of one token's hidden state on the link."""
    draft_step_s: MovingAverage = field(default_factory=MovingAverage)
    """gamma: seconds of one drafting step."""
    downlink: LinkRate = field(default_factory=LinkRate)
    path_stats: PathStats | None = None
    local_hop_time: BatchTimeModel = field(default_factory=BatchTimeModel)
    """The time of a hop on the device itself, by its rows."""
    chip_free_s: float = 0.0
    """When the chip last ended something."""

    def record_draft(self, steps: int, started_s: float, now: float) -> None:
        """So many drafting steps were asked for at `started_s` and are done; the chip may have had to end something."""
        if steps:
            self.draft_step_s.update((now - max(started_s, self.chip_free_s)) / steps)

    def record_message(self, nbytes: int, sent_s: float | None, path_stats: PathStats | None, now: float) -> None:
        """Something came from the cloud."""
        if sent_s is not None:
            self.downlink.update(nbytes, sent_s, now)
        self.path_stats = path_stats or self.path_stats
