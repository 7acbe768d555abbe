"""Slot `waiting`: what the device does while the cloud verifies."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal, Protocol

from serving.nodes.session import Session
from serving.thresholds import Thresholds


class Waiting(Protocol):
    @property
    def probes(self) -> tuple[str, ...]: ...

    @property
    def steps(self) -> int:
        """How many tokens to draft ahead on each guess; 0: idle."""
        ...

    def guesses(self, s: Session) -> tuple[tuple[int, int | None], ...]:
        """Verdicts worth preparing for: (drafts accepted, the token that follows or None for the drafter's own)."""
        ...


@dataclass(frozen=True)
class Idle:
    """The device waits."""

    steps: ClassVar[int] = 0
    probes: ClassVar[tuple[str, ...]] = ()

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

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(
                f"policy.waiting.steps is {self.steps}; draft at least 1 token ahead (policy/waiting=idle drafts none)"
            )

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
