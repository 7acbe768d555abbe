"""State monitoring (HAT, section 3.2): moving averages of batch times and link rates, as nodes measure them.

Hosts share no clock. A message carries its sender's send time. Its delay beyond that of the fastest message so far is
the time that its bytes took on the link.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from serving.core.draft_round import RoundLearner
from serving.messages import HEADER_NBYTES, PathStats, Request

ALPHA = 0.8
"""The share of the past in a moving average (HAT, section 3.2)."""
MIN_RATE_NBYTES = 4096
"""Only a message larger than the fastest one by this much measures a rate; for others delay and jitter dominate."""
_SCALE_TOKENS = 256.0
"""Batch size at which an error corrects the slope as much as the constant."""


@dataclass(slots=True)
class MovingAverage:
    """Eq. 1: alpha times the past plus (1 - alpha) times the new value; starts with the first value."""

    value: float | None = None

    def update(self, value: float) -> None:
        self.value = value if self.value is None else ALPHA * self.value + (1 - ALPHA) * value


@dataclass(slots=True)
class BatchTimeModel:
    """g: the time of a batch of x tokens as base_s + per_token_s x.

    Eq. 2 gives g at the measured batch size only. Of the lines through that value, the one nearest to the old line is
    taken (normalised least mean squares), with no negative coefficient.
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
        """A message of `nbytes` was sent at `sent_s` by the sender's clock. Messages keep their order, so a message
        that arrives right after another one was queued behind it.
        """
        delay_s = now - sent_s
        begin_s = max(sent_s + self._min_delay_s, self._last_received_s)
        queued, transfer_s = begin_s > sent_s + self._min_delay_s, now - begin_s
        extra_nbytes = nbytes if queued else nbytes - self._min_delay_nbytes
        self._last_received_s = now
        if delay_s < self._min_delay_s:
            self._min_delay_s, self._min_delay_nbytes = delay_s, nbytes
        elif extra_nbytes >= MIN_RATE_NBYTES and transfer_s > 0:
            rate, past = extra_nbytes / transfer_s, self.nbytes_per_s
            self.nbytes_per_s = rate if past is None else ALPHA * past + (1 - ALPHA) * rate

    @property
    def mbps(self) -> float:
        """0: not measured yet."""
        return 8e-6 * (self.nbytes_per_s or 0.0)


@dataclass(slots=True)
class NodeMonitor:
    """What a worker measures: its batches, and the uplinks of the devices that send to it."""

    batch_tokens: MovingAverage = field(default_factory=MovingAverage)
    batch_time: BatchTimeModel = field(default_factory=BatchTimeModel)
    uplinks: dict[str, LinkRate] = field(default_factory=dict)

    def record_batch(self, num_tokens: int, elapsed_s: float) -> None:
        self.batch_tokens.update(float(num_tokens))
        self.batch_time.update(num_tokens, elapsed_s)

    def record_request(self, request: Request, now: float) -> None:
        """A request that comes straight from its device measures the device's uplink."""
        if request.sent_s is not None and (
            request.hop_index == 0 or request.path[request.hop_index - 1] == request.reply_to
        ):
            uplink = self.uplinks.setdefault(request.reply_to, LinkRate())
            uplink.update(HEADER_NBYTES + request.slice.nbytes, request.sent_s, now)

    def path_stats(self, request: Request) -> PathStats:
        """The statistics of the nodes before this one, and its own."""
        before, own = request.path_stats, self.batch_time
        if before is None:
            uplink = self.uplinks.get(request.reply_to)
            return PathStats(
                self.batch_tokens.value or 0.0, own.base_s, own.per_token_s, 1, uplink.mbps if uplink else 0.0
            )
        return replace(
            before,
            base_s=before.base_s + own.base_s,
            per_token_s=before.per_token_s + own.per_token_s,
            num_nodes=before.num_nodes + 1,
        )


@dataclass(slots=True)
class DeviceMonitor:
    """What a device knows about the link and the cloud; None and 0: not measured yet."""

    hidden_nbytes: int = 0
    """A: bytes of one token's hidden state on the link."""
    draft_step_s: MovingAverage = field(default_factory=MovingAverage)
    """gamma: seconds of one drafting step."""
    downlink: LinkRate = field(default_factory=LinkRate)
    path_stats: PathStats | None = None
    local_hop_time: BatchTimeModel = field(default_factory=BatchTimeModel)
    """Batch time of the hop on the device itself."""
    chip_free_s: float = 0.0
    """When the chip last finished a job."""
    round_s: Callable[[int, float], float] | None = None
    """Where the target runs on the same chip: a session's share, in seconds, of a round of so many drafts of every
    session and the pass that verifies them, which yields so many tokens each; None: not known.
    """
    drafts_accepted: int = 0
    drafts_reached: int = 0
    """Of all its sessions: drafts that the target accepted, and those that it reached, a rejected one included."""
    learner: RoundLearner | None = None
    """What the draft slot learns from the rounds of all sessions, if it does."""

    def record_draft(self, steps: int, started_s: float, now: float) -> None:
        """A job of `steps` drafting steps, queued at `started_s`, is done; it may have waited for an earlier job."""
        if steps:
            self.draft_step_s.update((now - max(started_s, self.chip_free_s)) / steps)

    def record_verdict(self, accepted: int, num_drafts: int) -> None:
        """The target has accepted so many of `num_drafts` drafts."""
        self.drafts_accepted += accepted
        self.drafts_reached += accepted + (accepted < num_drafts)

    def record_message(self, nbytes: int, sent_s: float | None, path_stats: PathStats | None, now: float) -> None:
        """A message from the cloud."""
        if sent_s is not None:
            self.downlink.update(nbytes, sent_s, now)
        self.path_stats = path_stats or self.path_stats
