"""The compute and the cache that the open sessions of a node will still take: the content of its load reports."""

from typing import NamedTuple

from serving.core.kv_accounting import KVAccounting
from serving.hardware.estimator import Estimator
from serving.messages import INF, LoadReport, Request, Span


class Reservation(NamedTuple):
    attempt: int
    pending_tokens: int
    """Tokens of the current pass that wait or run."""
    remaining_passes: int
    """Passes after the current one."""
    max_cached_len: int
    """The longest that the session's cache can become."""


class Reservations:
    """One reservation per session. Remaining work is that of Hyperion, Eq. 19, with an answer as long as its limit."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._by_session: dict[str, Reservation] = {}
        self.per_token_s = self.pass_s = 0.0
        """Seconds of one more token in a pass, and of a pass of one token; set by the first request."""

    def __len__(self) -> int:
        return len(self._by_session)

    @property
    def has_timing(self) -> bool:
        """True once it is known how long a pass takes."""
        return self.pass_s > 0

    def reserve(self, request: Request, span: Span) -> bool:
        """Reserves for a request. Returns True if its session had no reservation."""
        session, seq = request.slice.session, request.slice
        if not self.has_timing:
            self.per_token_s, self.pass_s = self._estimator.per_token_s(span), self._estimator.pass_s(span)
        known = self._by_session.get(session)
        pending = known.pending_tokens if known and known.attempt == request.attempt else 0
        tokens = seq.start + seq.num_tokens + request.budget - 1
        self._by_session[session] = Reservation(request.attempt, pending + seq.num_tokens, request.budget - 1, tokens)
        return known is None

    def complete(self, session: str, num_tokens: int) -> None:
        """`num_tokens` of the session's pending tokens have run."""
        if known := self._by_session.get(session):
            pending = max(0, known.pending_tokens - num_tokens)
            self._by_session[session] = Reservation(known.attempt, pending, *known[2:])

    def release(self, session: str) -> bool:
        """Removes a session's reservation. Returns True if there was one."""
        return self._by_session.pop(session, None) is not None

    def load_report(self, node: str, kv_accounting: KVAccounting) -> LoadReport:
        queued_s = sum([self._compute_s(each) for each in self._by_session.values()], 0.0)
        free = INF
        if kv_accounting.capacity_tokens < INF:
            free = kv_accounting.capacity_tokens - sum(
                [kv_accounting.round_up_to_blocks(each.max_cached_len) for each in self._by_session.values()]
            )
        return LoadReport(node, queued_s, self.per_token_s, self.pass_s, free)

    def _compute_s(self, reservation: Reservation) -> float:
        passes = reservation.remaining_passes + (reservation.pending_tokens > 0)
        return passes * self.pass_s + max(0, reservation.pending_tokens - 1) * self.per_token_s
