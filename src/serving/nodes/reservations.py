"""What a node of a tier has promised to compute, and to hold: what those who choose among nodes want to know."""

from typing import NamedTuple

from serving.core.kv_accounting import Ledger
from serving.hardware.estimator import Estimator
from serving.messages import INF, Backlog, Request, Span


class Commitment(NamedTuple):
    round: int
    rows: int
    """That wait or run, of a session's present pass."""
    steps: int
    """Passes that follow."""
    tokens: int
    """That its cache may come to."""


class Commitments:
    """By session. Remaining work is that of Hyperion, Eq. 19; an answer's length is its limit, because nobody knows it
    before it is written.
    """

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._open: dict[str, Commitment] = {}
        self.row_s = self.step_s = 0.0
        """Of a row more in a pass, and of a pass that has one: known since the first request."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def timed(self) -> bool:
        """Is it known how long a pass takes?"""
        return self.step_s > 0

    def take(self, m: Request, span: Span) -> bool:
        """A request has come; was its session new?"""
        session, rows = m.rows.session, m.rows
        if not self.timed:
            self.row_s, self.step_s = self._estimator.row_s(span), self._estimator.step_s(span)
        known = self._open.get(session)
        waiting = known.rows if known and known.round == m.round else 0
        tokens = rows.start + rows.n + m.budget - 1
        self._open[session] = Commitment(m.round, waiting + rows.n, m.budget - 1, tokens)
        return known is None

    def done(self, session: str, rows: int) -> None:
        """So many of its rows have run."""
        if known := self._open.get(session):
            self._open[session] = known._replace(rows=max(0, known.rows - rows))

    def drop(self, session: str) -> bool:
        """Nothing is owed any more; was anything?"""
        return self._open.pop(session, None) is not None

    def backlog(self, node: str, ledger: Ledger) -> Backlog:
        queued_s = sum([self._seconds(each) for each in self._open.values()], 0.0)
        free = INF
        if ledger.capacity < INF:
            free = ledger.capacity - sum([ledger.whole(each.tokens) for each in self._open.values()])
        return Backlog(node, queued_s, self.row_s, self.step_s, free)

    def _seconds(self, each: Commitment) -> float:
        passes = each.steps + (each.rows > 0)
        return passes * self.step_s + max(0, each.rows - 1) * self.row_s
