"""Slot `draft`: how far to draft before asking."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, Protocol

from serving.core.scores import ACCEPT, UNTRAINED, Scorer, Scorers
from serving.core.session import Session
from serving.learned.medusa import Medusa
from serving.messages import Stop

Source = Literal["model", "heads", "none"]
UNKNOWN_ACCEPTANCE = 0.5


class Draft(Protocol):
    @property
    def source(self) -> Source:
        """Who drafts: the device's model, heads of the target whose tree arrives with a verdict, or nobody."""
        ...

    @property
    def probes(self) -> tuple[str, ...]:
        """Scores that the decision needs."""
        ...

    @property
    def scorers(self) -> Scorers:
        """Those of them that were trained."""
        ...

    @property
    def acceptance(self) -> float:
        """Share of the drafts that is expected to stand, before any was judged."""
        ...

    @property
    def medusa(self) -> Medusa | None:
        """The target's heads, where they draft."""
        ...

    @property
    def keep(self) -> bool:
        """Is the token at which the stop rule ends a draft sent?"""
        ...

    def fell(self, scores: Mapping[str, Sequence[float]]) -> bool:
        """Does the stop rule end a draft with these scores?"""
        ...

    def plan(self, s: Session) -> Stop | None:
        """Draft on, until this stop; or None: enough."""
        ...


@dataclass(frozen=True)
class Window:
    """Up to `k` tokens, ended early by a score: SLED's window, Synera's gamma, WISP's first predicted rejection, HAT's
    eta.
    """

    k: int
    score: str = ""
    below: float = 0.0
    keep: bool = True
    """Is the token whose score fell below sent (HAT, Eq. 5) or dropped (WISP, section 4.1)?"""
    source: ClassVar[Literal["model"]] = "model"
    scorers: ClassVar[Scorers] = UNTRAINED
    acceptance: ClassVar[float] = UNKNOWN_ACCEPTANCE
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(
                f"policy.draft.k is {self.k}; a window holds at least 1 token (policy/draft=none drafts nothing)"
            )
        if bool(self.score) != (self.below > 0):
            raise ValueError(
                f"policy.draft: score={self.score!r} and below={self.below} go together: name both or neither"
            )

    @property
    def probes(self) -> tuple[str, ...]:
        return (self.score,) if self.score else ()

    def plan(self, s: Session) -> Stop | None:
        room = min(self.k, s.remaining) - len(s.draft) if len(s.draft) < self.k else 0
        if room <= 0 or s.stopped or (s.draft and (s.draft_ended or self.fell(s.scores))):
            return None
        return _stop(room, self.score, self.below, self.keep)

    def fell(self, scores: Mapping[str, Sequence[float]]) -> bool:
        return bool(self.score) and min(scores.get(self.score) or (1.0,)) < self.below


_stop = cache(Stop)


class Predictor(Scorer, Protocol):
    """Tells which drafts will be rejected."""

    @property
    def threshold(self) -> float:
        """A chance of acceptance below it is a predicted rejection."""
        ...

    @property
    def acceptance(self) -> float:
        """Share of the drafts that stood with it when it was tried."""
        ...


@dataclass(frozen=True)
class RejectionPredictor:
    """Up to `k` tokens, ended before the first one that will be rejected as the predictor sees it; at least one (WISP,
    section 4.1).

    `threshold` None is the predictor's own, which was chosen on validation data.
    """

    k: int
    predictor: Predictor
    threshold: float | None = None
    source: ClassVar[Literal["model"]] = "model"
    probes: ClassVar[tuple[str, ...]] = (ACCEPT,)
    keep: ClassVar[bool] = False
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"policy.draft.k is {self.k}; a window holds at least 1 token")
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise ValueError(f"policy.draft.threshold is {self.threshold}; a chance of acceptance lies between 0 and 1")

    @property
    def scorers(self) -> Scorers:
        return {ACCEPT: self.predictor}

    @property
    def acceptance(self) -> float:
        return self.predictor.acceptance

    @property
    def below(self) -> float:
        return self.predictor.threshold if self.threshold is None else self.threshold

    def plan(self, s: Session) -> Stop | None:
        drafted = len(s.draft)
        room = min(self.k, s.remaining) - drafted
        if room <= 0 or s.stopped or (drafted and (s.draft_ended or self.fell(s.scores))):
            return None
        return _stop(room, ACCEPT, self.below, False, 0 if drafted else 1)

    def fell(self, scores: Mapping[str, Sequence[float]]) -> bool:
        return min(scores.get(ACCEPT) or (1.0,)) < self.below


@dataclass(frozen=True)
class Opening:
    """The first `k` tokens of an answer, on which it is decided who goes on; then one token at a time."""

    k: int
    source: ClassVar[Literal["model"]] = "model"
    probes: ClassVar[tuple[str, ...]] = ()
    scorers: ClassVar[Scorers] = UNTRAINED
    acceptance: ClassVar[float] = UNKNOWN_ACCEPTANCE
    keep: ClassVar[bool] = True
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"policy.draft.k is {self.k}; an opening has at least 1 token")

    def fell(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False

    def plan(self, s: Session) -> Stop | None:
        k = 1 if s.written else self.k
        room = min(k, s.remaining) - len(s.draft)
        return None if room <= 0 or s.draft_ended else _stop(room)


@dataclass(frozen=True)
class NoDraft:
    """Nobody drafts: every token is the target's."""

    source: ClassVar[Literal["none"]] = "none"
    probes: ClassVar[tuple[str, ...]] = ()
    scorers: ClassVar[Scorers] = UNTRAINED
    acceptance: ClassVar[float] = UNKNOWN_ACCEPTANCE
    keep: ClassVar[bool] = True
    medusa: ClassVar[None] = None

    def plan(self, s: Session) -> Stop | None:  # noqa: ARG002
        return None

    def fell(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class Heads:
    """Heads of the target draft, where its own head is: a tree of candidates comes with each verdict (Medusa, Cai et
    al. 2024; U-Medusa of HAT, section 4.1).
    """

    medusa: Medusa
    source: ClassVar[Literal["heads"]] = "heads"
    probes: ClassVar[tuple[str, ...]] = ()
    scorers: ClassVar[Scorers] = UNTRAINED
    keep: ClassVar[bool] = True

    @property
    def acceptance(self) -> float:
        """Candidates that stand, of those in the tree."""
        return max(0.0, self.medusa.acceptance_length - 1) / max(1, len(self.medusa.tree))

    def plan(self, s: Session) -> Stop | None:  # noqa: ARG002
        return None

    def fell(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False
