"""Slot `waiting`: what the device does while the cloud verifies."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal, Protocol

from serving.core.session import Session
from serving.learned.thresholds import Thresholds

NUM_TOP_CANDIDATES = 3
"""Of each draft so many of the drafter's likeliest tokens are known."""


class Lookahead(Protocol):
    @property
    def requested_scores(self) -> tuple[str, ...]: ...

    @property
    def max_steps(self) -> int:
        """How many tokens to draft ahead on each guess; 0: idle."""
        ...

    @property
    def monitors_link(self) -> bool:
        """Does it need to know how link and cloud fare?"""
        ...

    def num_steps(self, session: Session) -> int:
        """Tokens to draft ahead on each guess now: `max_steps` at most."""
        ...

    def assumed_verdicts(self, session: Session) -> tuple[tuple[int, int | None], ...]:
        """Verdicts worth preparing for: (drafts accepted, the token that follows or None for the drafter's own)."""
        ...


@dataclass(frozen=True)
class NoLookahead:
    """The device waits."""

    max_steps: ClassVar[int] = 0
    requested_scores: ClassVar[tuple[str, ...]] = ()
    monitors_link: ClassVar[bool] = False

    def num_steps(self, session: Session) -> int:  # noqa: ARG002
        return 0

    def assumed_verdicts(self, session: Session) -> tuple[tuple[int, int | None], ...]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class SyneraLookahead:
    """One guess where the draft will be rejected and by what it will be replaced (Synera, section 4.4).

    Args:
        steps: delta, the tokens to draft behind the guess; the paper gives no value. The token that takes the rejected
            one's place is not among them.
        thresholds: from its profile come alpha, the probability that a drafted token is accepted.
        full: may the guess be that all drafts stand? The printed distribution has no place for it (0 to gamma - 1).
        alternative: which of the drafter's three likeliest tokens takes the place of the rejected one, which is one of
            them: `sampled` among the other two (the paper), or the `likeliest` other.
    """

    thresholds: Thresholds
    max_steps: int = 3
    allow_full_acceptance: bool = True
    replacement: Literal["sampled", "likeliest"] = "sampled"
    requested_scores: ClassVar[tuple[str, ...]] = ("confidence",)
    monitors_link: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(
                f"policy.lookahead.max_steps is {self.max_steps}; draft at least 1 token ahead (policy/lookahead=none drafts none)"
            )

    def num_steps(self, session: Session) -> int:  # noqa: ARG002
        return self.max_steps

    def assumed_verdicts(self, session: Session) -> tuple[tuple[int, int | None], ...]:
        if not session.in_flight_drafts:
            return ()
        weights = rejection_weights(session.scores["confidence"], self.thresholds.alpha, self.allow_full_acceptance)
        at = sample_index(weights, session.uniform("rejection"))
        if at == len(session.in_flight_drafts):
            return ((at, None),)
        others = [token for token in session.top_candidates[at] if token != session.in_flight_drafts[at]]
        pick = 0 if self.replacement == "likeliest" else int(session.uniform("alternative") * len(others))
        return ((at, others[pick]),) if others else ()


@dataclass(frozen=True)
class HATLookahead:
    """A guess for each of the likeliest tokens at the last draft's place, where the stop rule expects a rejection (HAT,
    section 3.5).

    The drafted token itself is among them: behind it the draft is expected to stand, and the drafter's own next token
    stands in for the target's. What the paper leaves open is chosen so: k, and what follows full acceptance.

    Args:
        k: candidates, the drafted token included; 3 at most are known.
        steps: tokens to draft ahead on each, at most; lambda of Eq. 6 where that is fewer.
    """

    num_candidates: int = 3
    max_steps: int = 12
    requested_scores: ClassVar[tuple[str, ...]] = ()
    monitors_link: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.num_candidates <= NUM_TOP_CANDIDATES:
            raise ValueError(
                f"policy.lookahead.num_candidates is {self.num_candidates}; a drafter names its 1 to {NUM_TOP_CANDIDATES} likeliest tokens"
            )
        if self.max_steps < 1:
            raise ValueError(f"policy.lookahead.max_steps is {self.max_steps}; draft at least 1 token ahead")

    def num_steps(self, session: Session) -> int:
        """Eq. 6: as many drafting steps as the quickest verdict leaves time for."""
        monitor = session.monitor
        known, step_s = monitor.path_stats, monitor.draft_step_s.value
        up, down = known.uplink_mbps if known else 0.0, monitor.downlink.mbps
        if not (known and step_s and up and down):
            return self.max_steps
        megabits = 8e-6 * monitor.hidden_nbytes * (len(session.in_flight_drafts or ()) + 1)
        away_s = megabits / up + known.base_s + known.per_token_s * known.mean_batch_tokens + megabits / down
        return min(self.max_steps, int(away_s / step_s))

    def assumed_verdicts(self, session: Session) -> tuple[tuple[int, int | None], ...]:
        if not session.in_flight_drafts:
            return ()
        last = len(session.in_flight_drafts)
        others = [token for token in session.top_candidates[last - 1] if token != session.in_flight_drafts[-1]][
            : self.num_candidates - 1
        ]
        return ((last, None), *((last - 1, token) for token in others))


def rejection_weights(confidence: Sequence[float], alpha: float, allow_full_acceptance: bool) -> tuple[float, ...]:
    """How likely each position is to be the first that is rejected, not normalised (Synera, section 4.4).

    A capped geometric distribution over 0..gamma, where gamma stands for full acceptance, adjusted by confidence: times
    1 - c_t at position t and, where the paper is silent, times the mean confidence at gamma. Without
    `allow_full_acceptance` it ends at gamma - 1.
    """
    base = [(1.0 - alpha) * alpha**t * (1.0 - c) for t, c in enumerate(confidence)]
    if allow_full_acceptance:
        base.append(alpha ** len(confidence) * sum(confidence) / len(confidence))
    return tuple(base)


def sample_index(weights: Sequence[float], uniform: float) -> int:
    """The index at which the cumulated weights pass `uniform`, of [0, 1); the last one where all weights are zero."""
    sums = list(accumulate(weights))
    return next((i for i, total in enumerate(sums) if total > uniform * sums[-1]), len(sums) - 1)
