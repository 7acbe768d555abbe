"""Predicts a round of drafting and verifying on a chip that does both, at the load of now (`policy/draft=goodput`)."""

from collections.abc import Collection

from serving.core.link_monitor import MovingAverage
from serving.hardware.estimator import Estimator
from serving.messages import ForwardWork, Work, draft_works


class RoundTiming:
    """The estimators' predictions for the sessions that run, times what recent jobs took over what was predicted.

    So it holds on a chip whose speed is not quite that of the coefficients, such as this machine's.

    Args:
        batch_drafts: True if one forward drafts a token of every session; False: one forward each.
    """

    def __init__(self, target: Estimator, drafter: Estimator, batch_drafts: bool) -> None:
        self._target, self._drafter, self._batch_drafts = target, drafter, batch_drafts
        self._target_error, self._drafter_error = MovingAverage(1.0), MovingAverage(1.0)
        self._sessions, self._cached_tokens = 0, 0.0
        self._rounds_s: list[float] = []
        """By number of drafts, as far as asked for since the last update."""

    def record(self, work: Work, elapsed_s: float) -> None:
        """A job has taken so long."""
        if isinstance(work, ForwardWork):
            expected_s, error = self._target.batch_s(work), self._target_error
        else:
            expected_s, error = self._drafter.drafts_s(draft_works(work)), self._drafter_error
        if expected_s > 0:
            error.update(elapsed_s / expected_s)

    def update(self, lengths: Collection[int]) -> None:
        """The sessions that run have so many tokens."""
        self._sessions, self._rounds_s = len(lengths), []
        self._cached_tokens = sum(lengths) / max(1, len(lengths))

    def round_s(self, num_drafts: int) -> float:
        """Seconds in which every session drafts `num_drafts` tokens, and one pass verifies them."""
        while len(self._rounds_s) <= num_drafts:
            self._rounds_s.append(self._predict(len(self._rounds_s)))
        return self._rounds_s[num_drafts]

    def _predict(self, num_drafts: int) -> float:
        sessions, cached = self._sessions, self._cached_tokens
        together, forwards = (sessions, 1) if self._batch_drafts else (1, sessions)
        step_s = forwards * self._drafter.pass_of_s(together, cached, 1) * (self._drafter_error.value or 0.0)
        return num_drafts * step_s + self._target.pass_of_s(sessions, cached, num_drafts + 1) * (
            self._target_error.value or 0.0
        )
