"""Slot `draft`: how far to draft for a target that is far away: optimal stopping by the measured delay.

A round of n drafts takes n t_d + D seconds: t_d a drafting step, D the way to the verdict and back, the verification
included. It yields the accepted drafts and a token of the target. Over many rounds tokens a second are the mean tokens
of a round over its mean time, and the best rule (Sun et al., Delay-Adaptive Speculation Control, arXiv 2606.20591,
2026, call it a ratio-type optimal stopping) drafts on while

    P(all drafts so far and the next one are right) > r t_d,        r: the tokens a second of that rule

The left side only falls along a draft, so looking one token ahead is enough. Where every draft is right with
probability a, the best length grows by log 2 / log (1/a) tokens when D doubles, and one token is best below
D = t_d (1 + a - a^2) / a^2. These forms are derived here; docs/beyond.md has them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import expm1, log, prod, sqrt
from typing import ClassVar, Literal

from serving.core.draft_round import DraftRound
from serving.core.session import Session
from serving.messages import INF, DraftStopRule
from serving.policy.slots.draft import DEFAULT_ACCEPTANCE

SCORE = "confidence"
MEMORY_ROUNDS = 32
"""Rounds after which a measured time counts 1 / e."""
_PRIOR = 4.0
"""Weight of what is assumed before anything is measured: drafts, and nats."""


class _ChainOfModel:
    """What all choices of this file have in common: chains by the device's model, up to `k` tokens."""

    k: int
    source: ClassVar[Literal["model"]] = "model"
    requested_scores: ClassVar[tuple[str, ...]] = (SCORE,)
    acceptance: ClassVar[float] = DEFAULT_ACCEPTANCE
    keep_last: ClassVar[bool] = True
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"policy.draft.k is {self.k}; a draft may have at least 1 token")

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False  # a draft ahead goes on until its verdict; `next_stop` then decides with what is measured

    def room(self, session: Session, length: int) -> int:
        """Tokens that a draft of `length` tokens lacks; 0 if it has ended."""
        ended = session.stopped or session.draft_ends_answer
        return 0 if ended else max(0, min(length, session.remaining_tokens) - len(session.draft))


@dataclass(frozen=True)
class PathDraft(_ChainOfModel):
    """Up to `k` tokens, until the chance that all of them are right, the product of their confidence, is below
    `threshold` (SpecDec++, Huang et al., 2025, section 4, with confidence in place of its trained head).
    """

    k: int
    threshold: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.threshold < 1:
            raise ValueError(f"policy.draft.threshold is {self.threshold}; the chance of a path lies between 0 and 1")

    def next_stop(self, session: Session) -> DraftStopRule | None:
        return path_stop(session, self.room(session, self.k), self.threshold)


def path_stop(session: Session, room: int, threshold: float) -> DraftStopRule | None:
    """Up to `room` more tokens, until the product of all the draft's confidence is below `threshold`."""
    path = prod(session.scores.get(SCORE, ())) if session.draft else 1.0
    if not room or (session.draft and path < threshold):
        return None
    return DraftStopRule(room, SCORE, threshold / max(path, 1e-9), product=True)


@dataclass(slots=True)
class RoundRates:
    """Times of the last rounds, and how confidence and acceptance go together.

    A draft of confidence c is right with probability c^sharpness. With -log c as exposure and rejections as events this
    is a constant hazard, so sharpness is rejections over exposure; a rejected draft counts with its expected part.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    drafts: float = 0.0
    draft_s: float = 0.0
    accepted: int = 0
    reached: int = 0
    """Drafts that the target accepted, and that it reached."""
    later_accepted: int = 0
    later_reached: int = 0
    """The same without the first draft of each round: those that follow a right one."""
    exposure: float = 0.0

    def record(self, done: DraftRound) -> None:
        keep = 1 - 1 / MEMORY_ROUNDS
        self.tokens = keep * self.tokens + done.accepted + 1
        self.seconds = keep * self.seconds + done.draft_s + done.away_s
        self.drafts = keep * self.drafts + done.num_drafts
        self.draft_s = keep * self.draft_s + done.draft_s
        reached = done.accepted + (done.accepted < done.num_drafts)
        self.later_accepted += max(0, done.accepted - 1)
        self.later_reached += max(0, reached - 1)
        sharpness = self.sharpness
        self.accepted, self.reached = self.accepted + done.accepted, self.reached + reached
        for i, confidence in enumerate(done.confidence[:reached]):
            nats = -log(min(max(confidence, 1e-9), 1 - 1e-6))
            self.exposure += nats if i < done.accepted else _expected_part(nats, sharpness)

    @property
    def sharpness(self) -> float:
        return (self.reached - self.accepted + _PRIOR) / (self.exposure + _PRIOR)

    @property
    def next_acceptance(self) -> float:
        """The chance that a draft is right if the one before it is."""
        first = (self.accepted + _PRIOR * DEFAULT_ACCEPTANCE) / (self.reached + _PRIOR)
        return (self.later_accepted + _PRIOR * first) / (self.later_reached + _PRIOR)

    @property
    def path_threshold(self) -> float:
        """The product of confidence below which another token does not pay; 0 until a round is measured."""
        if not self.draft_s:
            return 0.0
        step_s, tokens_per_s = self.draft_s / self.drafts, self.tokens / self.seconds
        return _power(tokens_per_s * step_s / self.next_acceptance, 1 / self.sharpness)


def _power(base: float, exponent: float) -> float:
    """`base ** exponent`; infinite where that is more than a float holds, as after thousands of right drafts."""
    try:
        return float(base**exponent)
    except OverflowError:
        return INF


def _expected_part(nats: float, sharpness: float) -> float:
    """Where in its exposure of `nats` a rejected draft is expected to fail, at a constant hazard of `sharpness`."""
    return 1 / sharpness - nats / expm1(min(sharpness * nats, 500.0))


@dataclass(frozen=True)
class DelayAdaptiveDraft(_ChainOfModel):
    """Up to `k` tokens, as long as the next one pays by the rounds that the device has measured. At least one; `k`
    until a round is measured.
    """

    k: int

    def new_learner(self) -> RoundRates:
        return RoundRates()

    def next_stop(self, session: Session) -> DraftStopRule | None:
        learned = session.monitor.learner
        assert isinstance(learned, RoundRates)
        return path_stop(session, self.room(session, self.k), learned.path_threshold)


@dataclass(slots=True)
class LengthBandit:
    """An arm for each length of a draft: its rounds, their tokens and seconds, of which older ones count less.

    A round shows what shorter drafts would have yielded, too: fewer accepted tokens, and fewer drafting steps.

    Args:
        memory_rounds: rounds after which a round counts 1 / e; 0: all count alike.
    """

    k: int
    exploration: float
    memory_rounds: int
    prefixes: bool
    rounds: list[float] = field(init=False)
    tokens: list[float] = field(init=False)
    seconds: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.rounds, self.tokens, self.seconds = ([0.0] * (self.k + 1) for _ in range(3))

    def record(self, done: DraftRound) -> None:
        keep, n = 1 - 1 / self.memory_rounds if self.memory_rounds else 1.0, done.num_drafts
        for sums in (self.rounds, self.tokens, self.seconds):
            sums[:] = [keep * value for value in sums]
        step_s = done.draft_s / n
        for length in range(1 if self.prefixes else n, min(n, self.k) + 1):  # a branch drafted ahead may be longer
            self.rounds[length] += 1
            self.tokens[length] += min(done.accepted, length) + 1
            self.seconds[length] += done.draft_s + done.away_s - (n - length) * step_s

    @property
    def best_length(self) -> int:
        """The arm with the highest index; first those without a round, the longest of them before the others."""
        untried = [length for length in range(1, self.k + 1) if not self.rounds[length]]
        if untried:
            return untried[-1]
        nats = log(max(1.0, self.rounds[1] if self.prefixes else sum(self.rounds)))
        return max(range(1, self.k + 1), key=lambda length: self.index(length, nats))

    def index(self, length: int, nats: float) -> float:
        """UCB1 of the tokens of a round, between 1 and length + 1, over its mean seconds (Auer et al., 2002)."""
        n = self.rounds[length]
        tokens = self.tokens[length] / n + self.exploration * length * sqrt(2 * nats / n)
        return tokens * n / max(self.seconds[length], 1e-9)


@dataclass(frozen=True)
class UCBSpecStop(_ChainOfModel):
    """As many tokens, up to `k`, as an upper confidence bound of tokens a second is highest for (after UCB-SpecStop of
    arXiv 2606.20591, whose index is not public: this one is derived here).

    Args:
        exploration: the bound's width; 1: UCB1's, for rewards of any distribution.
        memory_rounds: rounds after which a round counts 1 / e; 0: all count alike.
        prefixes: False: a round says nothing about shorter drafts.
    """

    k: int
    exploration: float = 0.1
    memory_rounds: int = 1000
    prefixes: bool = True
    requested_scores: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exploration < 0 or self.memory_rounds < 0 or self.memory_rounds == 1:
            raise ValueError(
                f"policy.draft: exploration={self.exploration} is a width, 0 or more; "
                f"memory_rounds={self.memory_rounds} is 0 or at least 2"
            )

    def new_learner(self) -> LengthBandit:
        return LengthBandit(self.k, self.exploration, self.memory_rounds, self.prefixes)

    def next_stop(self, session: Session) -> DraftStopRule | None:
        learned = session.monitor.learner
        assert isinstance(learned, LengthBandit)
        room = self.room(session, learned.best_length)
        return DraftStopRule(room) if room else None
