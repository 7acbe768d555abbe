"""Slot `draft`: how far to draft before asking."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, Protocol

from serving.core.scores import ACCEPTANCE, NO_SCORERS, Scorer, Scorers
from serving.core.session import Session
from serving.learned.medusa import MedusaHeads
from serving.messages import DraftStopRule

DraftSource = Literal["model", "medusa", "none"]
DEFAULT_ACCEPTANCE = 0.5


class Draft(Protocol):
    @property
    def source(self) -> DraftSource:
        """Who drafts: the device's model, heads of the target whose tree arrives with a verdict, or nobody."""
        ...

    @property
    def requested_scores(self) -> tuple[str, ...]:
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
    def medusa(self) -> MedusaHeads | None:
        """The target's heads, where they draft."""
        ...

    @property
    def keep_last(self) -> bool:
        """Is the token at which the stop rule ends a draft sent?"""
        ...

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:
        """Does the stop rule end a draft with these scores?"""
        ...

    def next_stop(self, session: Session) -> DraftStopRule | None:
        """Draft on, until this stop; or None: enough."""
        ...


@dataclass(frozen=True)
class WindowDraft:
    """Up to `k` tokens, ended early by a score: SLED's window, Synera's gamma, WISP's first predicted rejection, HAT's
    eta.
    """

    k: int
    score: str = ""
    threshold: float = 0.0
    keep_last: bool = True
    """Is the token whose score fell below sent (HAT, Eq. 5) or dropped (WISP, section 4.1)?"""
    source: ClassVar[Literal["model"]] = "model"
    scorers: ClassVar[Scorers] = NO_SCORERS
    acceptance: ClassVar[float] = DEFAULT_ACCEPTANCE
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(
                f"policy.draft.k is {self.k}; a window holds at least 1 token (policy/draft=none drafts nothing)"
            )
        if bool(self.score) != (self.threshold > 0):
            raise ValueError(
                f"policy.draft: score={self.score!r} and threshold={self.threshold} go together: name both or neither"
            )

    @property
    def requested_scores(self) -> tuple[str, ...]:
        return (self.score,) if self.score else ()

    def next_stop(self, session: Session) -> DraftStopRule | None:
        room = min(self.k, session.remaining_tokens) - len(session.draft) if len(session.draft) < self.k else 0
        if (
            room <= 0
            or session.stopped
            or (session.draft and (session.draft_hit_stop_token or self.should_stop(session.scores)))
        ):
            return None
        return _cached_stop(room, self.score, self.threshold, self.keep_last)

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:
        return bool(self.score) and min(scores.get(self.score) or (1.0,)) < self.threshold


_cached_stop = cache(DraftStopRule)


class RejectionScorer(Scorer, Protocol):
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
class RejectionAwareDraft:
    """Up to `k` tokens, ended before the first one that will be rejected as the predictor sees it; at least one (WISP,
    section 4.1).

    `threshold` None is the predictor's own, which was chosen on validation data.
    """

    k: int
    predictor: RejectionScorer
    threshold: float | None = None
    source: ClassVar[Literal["model"]] = "model"
    requested_scores: ClassVar[tuple[str, ...]] = (ACCEPTANCE,)
    keep_last: ClassVar[bool] = False
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"policy.draft.k is {self.k}; a window holds at least 1 token")
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise ValueError(f"policy.draft.threshold is {self.threshold}; a chance of acceptance lies between 0 and 1")

    @property
    def scorers(self) -> Scorers:
        return {ACCEPTANCE: self.predictor}

    @property
    def acceptance(self) -> float:
        return self.predictor.acceptance

    @property
    def effective_threshold(self) -> float:
        return self.predictor.threshold if self.threshold is None else self.threshold

    def next_stop(self, session: Session) -> DraftStopRule | None:
        drafted = len(session.draft)
        room = min(self.k, session.remaining_tokens) - drafted
        if (
            room <= 0
            or session.stopped
            or (drafted and (session.draft_hit_stop_token or self.should_stop(session.scores)))
        ):
            return None
        return _cached_stop(room, ACCEPTANCE, self.effective_threshold, False, 0 if drafted else 1)

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:
        return min(scores.get(ACCEPTANCE) or (1.0,)) < self.effective_threshold


@dataclass(frozen=True)
class InitialDraft:
    """The first `k` tokens of an answer, on which it is decided who goes on; then one token at a time."""

    k: int
    source: ClassVar[Literal["model"]] = "model"
    requested_scores: ClassVar[tuple[str, ...]] = ()
    scorers: ClassVar[Scorers] = NO_SCORERS
    acceptance: ClassVar[float] = DEFAULT_ACCEPTANCE
    keep_last: ClassVar[bool] = True
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"policy.draft.k is {self.k}; an opening has at least 1 token")

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False

    def next_stop(self, session: Session) -> DraftStopRule | None:
        k = 1 if session.num_generated else self.k
        room = min(k, session.remaining_tokens) - len(session.draft)
        return None if room <= 0 or session.draft_hit_stop_token else _cached_stop(room)


@dataclass(frozen=True)
class NoDraft:
    """Nobody drafts: every token is the target's."""

    source: ClassVar[Literal["none"]] = "none"
    requested_scores: ClassVar[tuple[str, ...]] = ()
    scorers: ClassVar[Scorers] = NO_SCORERS
    acceptance: ClassVar[float] = DEFAULT_ACCEPTANCE
    keep_last: ClassVar[bool] = True
    medusa: ClassVar[None] = None

    def next_stop(self, session: Session) -> DraftStopRule | None:  # noqa: ARG002
        return None

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class MedusaDraft:
    """Heads of the target draft, where its own head is: a tree of candidates comes with each verdict (Medusa, Cai et
    al. 2024; U-Medusa of HAT, section 4.1).
    """

    medusa: MedusaHeads
    source: ClassVar[Literal["medusa"]] = "medusa"
    requested_scores: ClassVar[tuple[str, ...]] = ()
    scorers: ClassVar[Scorers] = NO_SCORERS
    keep_last: ClassVar[bool] = True

    @property
    def acceptance(self) -> float:
        """Candidates that stand, of those in the tree."""
        return max(0.0, self.medusa.acceptance_length - 1) / max(1, len(self.medusa.tree))

    def next_stop(self, session: Session) -> DraftStopRule | None:  # noqa: ARG002
        return None

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False
