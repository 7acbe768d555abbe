"""Slot `waiting`: what the device does while the cloud verifies."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal, Protocol

from serving.core.session import Session
from serving.learned.thresholds import Thresholds

TOPS = 3
"""Of each draft so many of the drafter's likeliest tokens are known."""


class Waiting(Protocol):
    @property
    def probes(self) -> tuple[str, ...]: ...

    @property
    def steps(self) -> int:
        """How many tokens to draft ahead on each guess; 0: idle."""
        ...

    @property
    def monitors(self) -> bool:
        """Does it need to know how link and cloud fare?"""
        ...

    def limit(self, s: Session) -> int:
        """Tokens to draft ahead on each guess now: `steps` at most."""
        ...

    def guesses(self, s: Session) -> tuple[tuple[int, int | None], ...]:
        """Verdicts worth preparing for: (drafts accepted, the token that follows or None for the drafter's own)."""
        ...


@dataclass(frozen=True)
class Idle:
    """The device waits."""

    steps: ClassVar[int] = 0
    probes: ClassVar[tuple[str, ...]] = ()
    monitors: ClassVar[bool] = False

    def limit(self, s: Session) -> int:  # noqa: ARG002
        return 0

    def guesses(self, s: Session) -> tuple[tuple[int, int | None], ...]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class Parallel:
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
    steps: int = 3
    full: bool = True
    alternative: Literal["sampled", "likeliest"] = "sampled"
    probes: ClassVar[tuple[str, ...]] = ("confidence",)
    monitors: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(
                f"policy.waiting.steps is {self.steps}; draft at least 1 token ahead (policy/waiting=idle drafts none)"
            )

    def limit(self, s: Session) -> int:  # noqa: ARG002
        return self.steps

    def guesses(self, s: Session) -> tuple[tuple[int, int | None], ...]:
        if not s.flight:
            return ()
        weights = rejection(s.scores["confidence"], self.thresholds.alpha, self.full)
        at = drawn(weights, s.luck("rejection"))
        if at == len(s.flight):
            return ((at, None),)
        others = [token for token in s.tops[at] if token != s.flight[at]]
        pick = 0 if self.alternative == "likeliest" else int(s.luck("alternative") * len(others))
        return ((at, others[pick]),) if others else ()


@dataclass(frozen=True)
class Candidates:
    """A guess for each of the likeliest tokens at the last draft's place, where the stop rule expects a rejection (HAT,
    section 3.5).

    The drafted token itself is among them: behind it the draft is expected to stand, and the drafter's own next token
    stands in for the target's. What the paper leaves open is chosen so: k, and what follows full acceptance.

    Args:
        k: candidates, the drafted token included; 3 at most are known.
        steps: tokens to draft ahead on each, at most; lambda of Eq. 6 where that is fewer.
    """

    k: int = 3
    steps: int = 12
    probes: ClassVar[tuple[str, ...]] = ()
    monitors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.k <= TOPS:
            raise ValueError(f"policy.waiting.k is {self.k}; a drafter names its 1 to {TOPS} likeliest tokens")
        if self.steps < 1:
            raise ValueError(f"policy.waiting.steps is {self.steps}; draft at least 1 token ahead")

    def limit(self, s: Session) -> int:
        """Eq. 6: as many drafting steps as the quickest verdict leaves time for."""
        monitor = s.monitor
        known, step_s = monitor.condition, monitor.step.value
        up, down = known.uplink_mbps if known else 0.0, monitor.downlink.mbps
        if not (known and step_s and up and down):
            return self.steps
        megabits = 8e-6 * monitor.row_nbytes * (len(s.flight or ()) + 1)
        away_s = megabits / up + known.base_s + known.row_s * known.tokens + megabits / down
        return min(self.steps, int(away_s / step_s))

    def guesses(self, s: Session) -> tuple[tuple[int, int | None], ...]:
        if not s.flight:
            return ()
        last = len(s.flight)
        others = [token for token in s.tops[last - 1] if token != s.flight[-1]][: self.k - 1]
        return ((last, None), *((last - 1, token) for token in others))


def rejection(confidence: Sequence[float], alpha: float, full: bool) -> tuple[float, ...]:
    """How likely each position is to be the first that is rejected, not normalised (Synera, section 4.4).

    A capped geometric distribution over 0..gamma, where gamma stands for full acceptance, adjusted by confidence: times
    1 - c_t at position t and, where the paper is silent, times the mean confidence at gamma. Without `full` it ends at
    gamma - 1.
    """
    base = [(1.0 - alpha) * alpha**t * (1.0 - c) for t, c in enumerate(confidence)]
    if full:
        base.append(alpha ** len(confidence) * sum(confidence) / len(confidence))
    return tuple(base)


def drawn(weights: Sequence[float], luck: float) -> int:
    """The index at which the cumulated weights pass `luck`, of [0, 1); the last one where all weights are zero."""
    sums = list(accumulate(weights))
    return next((i for i, total in enumerate(sums) if total > luck * sums[-1]), len(sums) - 1)
