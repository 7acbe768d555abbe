"""Slot `draft`: what drafts, and how far before the next request."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from typing import ClassVar, Literal, Protocol, runtime_checkable

from serving.core.draft_round import RoundLearner
from serving.core.scores import Scorer
from serving.core.session import Session
from serving.core.tree_growth import check_shape
from serving.learned.medusa import MedusaHeads
from serving.messages import DraftOutcome, DraftParents, DraftStopRule, TokenIds, TreeRule

DraftSource = Literal["model", "medusa", "lookup", "none"]
DEFAULT_ACCEPTANCE = 0.5


class Draft(Protocol):
    @property
    def source(self) -> DraftSource:
        """The device's draft model, the target's Medusa heads (whose tree comes with each verdict), the text itself, or
        none.
        """
        ...

    @property
    def requested_scores(self) -> tuple[str, ...]:
        """Untrained scores that `next_stop` needs. A trained one comes from its `scorer`, if it has one."""
        ...

    @property
    def acceptance(self) -> float:
        """Expected share of accepted drafts, before any was verified."""
        ...

    @property
    def medusa(self) -> MedusaHeads | None:
        """The Medusa heads, if they draft."""
        ...

    @property
    def keep_last(self) -> bool:
        """True if the token whose score ends a draft is kept."""
        ...

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:
        """True if the stop rule ends a draft with these scores."""
        ...

    def next_stop(self, session: Session) -> DraftStopRule | None:
        """The stop rule for drafting on; None: the draft is complete."""
        ...


@runtime_checkable
class TextDraft(Protocol):
    """A draft that is read off the text, without a model."""

    def proposal(self, session: Session) -> DraftOutcome | None:
        """The next draft; None where the text suggests none."""
        ...


@runtime_checkable
class LearningDraft(Protocol):
    """A draft whose length follows from the rounds so far. A choice is shared; what is learned is the device's."""

    def new_learner(self) -> RoundLearner:
        """What one device learns with."""
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
    """True: keep the token whose score is below the threshold (HAT, Eq. 5). False: drop it (WISP, section 4.1)."""
    acceptance: float = field(default=DEFAULT_ACCEPTANCE, metadata={"omitted_at_default": True})
    """The share of accepted drafts that a request's deadline expects before any was verified (WISP, Eq. 5; its Table 5
    has 0.31 to 0.53).
    """
    source: ClassVar[Literal["model"]] = "model"
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
        if not 0 <= self.acceptance <= 1:
            raise ValueError(f"policy.draft.acceptance is {self.acceptance}; it is a share, 0 to 1")

    @property
    def requested_scores(self) -> tuple[str, ...]:
        return (self.score,) if self.score else ()

    def next_stop(self, session: Session) -> DraftStopRule | None:
        room = min(self.k, session.remaining_tokens) - len(session.draft) if len(session.draft) < self.k else 0
        if (
            room <= 0
            or session.stopped
            or (session.draft and (session.draft_ends_answer or self.should_stop(session.scores)))
        ):
            return None
        return _cached_stop(room, self.score, self.threshold, self.keep_last)

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:
        return bool(self.score) and min(scores.get(self.score) or (1.0,)) < self.threshold


_cached_stop = cache(DraftStopRule)


@dataclass(frozen=True)
class GoodputDraft:
    """As many tokens, up to `k`, as promise most accepted tokens a second at the load of now; none where drafting would
    slow the batch (Liu et al., Optimizing Speculative Decoding for Serving Large Language Models Using Goodput, 2024).

    A round of n drafts takes n drafting steps and a pass over n + 1 rows of every session that runs, and prompts; on
    two sets of chips, the longer of the two. It yields (1 - a^(n+1)) / (1 - a) tokens, where a is the share of accepted
    drafts of all sessions so far. Where a round's time is not known, and until `k` drafts have been judged, `k`.
    """

    k: int
    source: ClassVar[Literal["model"]] = "model"
    requested_scores: ClassVar[tuple[str, ...]] = ()
    acceptance: ClassVar[float] = DEFAULT_ACCEPTANCE
    keep_last: ClassVar[bool] = True
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"policy.draft.k is {self.k}; a window holds at least 1 token")

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False

    def next_stop(self, session: Session) -> DraftStopRule | None:
        if len(session.draft) >= min(self.k, session.remaining_tokens) or session.draft_ends_answer:
            return None
        room = min(self.best_length(session), session.remaining_tokens) - len(session.draft)
        return _cached_stop(room) if room > 0 else None

    def best_length(self, session: Session) -> int:
        """The number of drafts of most tokens a second: 0 to `k`."""
        monitor = session.monitor
        if monitor.round_s is None or monitor.drafts_reached < self.k:
            return self.k
        a = (monitor.drafts_accepted + self.acceptance) / (monitor.drafts_reached + 1)
        best, most = 0, 0.0
        tokens, share = 0.0, 1.0
        for n in range(self.k + 1):
            tokens, share = tokens + share, share * a
            seconds = monitor.round_s(n, tokens)
            if tokens > most * seconds:
                best, most = n, tokens / seconds
        return best


class RejectionScorer(Scorer, Protocol):
    """A trained score: the probability that the target accepts a draft."""

    @property
    def threshold(self) -> float:
        """A probability below it predicts a rejection."""
        ...

    @property
    def acceptance(self) -> float:
        """Share of accepted drafts in its evaluation."""
        ...


@dataclass(frozen=True)
class RejectionAwareDraft:
    """Up to `k` tokens, ended before the first predicted rejection; at least one (WISP, section 4.1).

    `threshold` None: the predictor's own, chosen on validation data.
    """

    k: int
    scorer: RejectionScorer
    threshold: float | None = None
    source: ClassVar[Literal["model"]] = "model"
    requested_scores: ClassVar[tuple[str, ...]] = ()
    keep_last: ClassVar[bool] = False
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"policy.draft.k is {self.k}; a window holds at least 1 token")
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise ValueError(
                f"policy.draft.threshold is {self.threshold}; a probability of acceptance lies between 0 and 1"
            )

    @property
    def acceptance(self) -> float:
        return self.scorer.acceptance

    @property
    def effective_threshold(self) -> float:
        return self.scorer.threshold if self.threshold is None else self.threshold

    def next_stop(self, session: Session) -> DraftStopRule | None:
        drafted = len(session.draft)
        room = min(self.k, session.remaining_tokens) - drafted
        if (
            room <= 0
            or session.stopped
            or (drafted and (session.draft_ends_answer or self.should_stop(session.scores)))
        ):
            return None
        return _cached_stop(room, self.scorer.name, self.effective_threshold, False, 0 if drafted else 1)

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:
        return min(scores.get(self.scorer.name) or (1.0,)) < self.effective_threshold


@dataclass(frozen=True)
class TreeDraft:
    """A tree of up to `nodes` tokens, grown where the draft model's path probability is highest (EAGLE-2, Li et al.,
    2024, section 4), or a fixed tree (Sequoia, Chen et al., 2024).

    Args:
        nodes: tokens of a tree; the target verifies all of them in one pass.
        depth: levels, each one forward of the draft model.
        branching: children of a node, and nodes of a level that get children.
        scorer: a branch ends where it predicts a rejection (WISP, section 4.1); None: nowhere.
        threshold: a probability of acceptance; None: the scorer's own.
        shape: a fixed tree in place of the likeliest nodes: each node's path of ranks among its siblings.
    """

    nodes: int = 16
    depth: int = 5
    branching: int = 4
    scorer: RejectionScorer | None = None
    threshold: float | None = None
    shape: tuple[tuple[int, ...], ...] = ()
    source: ClassVar[Literal["model"]] = "model"
    requested_scores: ClassVar[tuple[str, ...]] = ()
    keep_last: ClassVar[bool] = False
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        for name in ("nodes", "depth", "branching"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.draft.{name} is {getattr(self, name)}; a tree has at least 1")
        if self.nodes < self.depth:
            raise ValueError(
                f"policy.draft.nodes is {self.nodes}, and depth {self.depth}; a tree of {self.nodes} nodes reaches no "
                f"level beyond {self.nodes}: allow more nodes, or fewer levels"
            )
        if self.threshold is not None and self.scorer is None:
            raise ValueError("policy.draft.threshold needs a scorer, whose probabilities it is compared with")
        check_shape(self.shape, "policy.draft.shape")

    @property
    def acceptance(self) -> float:
        """Expected share of the tree's nodes that are accepted."""
        deepest = max(map(len, self.shape), default=self.depth)
        return DEFAULT_ACCEPTANCE * deepest / self.max_nodes

    @property
    def max_nodes(self) -> int:
        """Tokens of a whole tree."""
        return len(self.shape) or self.nodes

    @cached_property
    def stop_rule(self) -> DraftStopRule:
        """How a tree grows."""
        depth = max(map(len, self.shape), default=self.depth)
        tree = TreeRule(depth, self.branching, self.shape)
        if self.scorer is None:
            return DraftStopRule(self.max_nodes, tree=tree)
        threshold = self.scorer.threshold if self.threshold is None else self.threshold
        return DraftStopRule(self.max_nodes, self.scorer.name, threshold, False, 1, tree)

    def next_stop(self, session: Session) -> DraftStopRule | None:
        return None if session.draft else self.stop_rule

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class InitialDraft:
    """The first `k` tokens of an answer, which decide whether the cloud continues; then one token at a time."""

    k: int
    source: ClassVar[Literal["model"]] = "model"
    requested_scores: ClassVar[tuple[str, ...]] = ()
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
        return None if room <= 0 or session.draft_ends_answer else _cached_stop(room)


class _WithoutModel:
    """A draft that the device's model does not write: nothing to stop, and no scores."""

    requested_scores: ClassVar[tuple[str, ...]] = ()
    keep_last: ClassVar[bool] = True

    def next_stop(self, session: Session) -> DraftStopRule | None:  # noqa: ARG002
        return None

    def should_stop(self, scores: Mapping[str, Sequence[float]]) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class NoDraft(_WithoutModel):
    """No drafts: every token is the target's."""

    source: ClassVar[Literal["none"]] = "none"
    acceptance: ClassVar[float] = DEFAULT_ACCEPTANCE
    medusa: ClassVar[None] = None


@dataclass(frozen=True)
class MedusaDraft(_WithoutModel):
    """The target's Medusa heads draft: a tree of candidates comes with each verdict (Medusa, Cai et al. 2024; U-Medusa
    of HAT, section 4.1).
    """

    medusa: MedusaHeads
    source: ClassVar[Literal["medusa"]] = "medusa"

    @property
    def acceptance(self) -> float:
        """Expected share of the tree's candidates that are accepted."""
        return max(0.0, self.medusa.acceptance_length - 1) / max(1, len(self.medusa.tree))


@dataclass(frozen=True)
class LookupDraft(_WithoutModel):
    """Up to `k` tokens that once followed the text's last tokens (Saxena, Prompt Lookup Decoding, 2023).

    The last `longest` tokens are looked for in the text before them, then fewer, down to `shortest`; the latest place
    counts. Without one nothing is drafted, and the target writes a token.

    Args:
        continuations: how many different continuations are drafted, as a tree; 1: a chain.
    """

    k: int
    longest: int = 3
    shortest: int = 1
    continuations: int = 1
    source: ClassVar[Literal["lookup"]] = "lookup"
    acceptance: ClassVar[float] = DEFAULT_ACCEPTANCE
    medusa: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"policy.draft.k is {self.k}; a window holds at least 1 token")
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"policy.draft: shortest={self.shortest} and longest={self.longest} tokens are looked for; give "
                "1 or more, the shortest at most the longest"
            )
        if self.continuations < 1:
            raise ValueError(f"policy.draft.continuations is {self.continuations}; draft at least 1")

    def proposal(self, session: Session) -> DraftOutcome | None:
        room = min(self.k, session.remaining_tokens)
        found = tuple(islice(self.matches(session.tokens, room), self.continuations))
        tokens, parents = merged(found) if self.continuations > 1 else (found[0] if found else (), None)
        top_candidates = tuple((token,) for token in tokens)
        if not tokens:
            return None
        return DraftOutcome(tokens, {}, top_candidates, False, session.draft_cached_len, parents=parents)

    def matches(self, text: Sequence[int], room: int) -> Iterator[TokenIds]:
        """Up to `room` tokens that once followed the end of `text`, each continuation once, the longest match first."""
        seen: set[TokenIds] = set()
        for length in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            wanted = text[-length:]
            for end in range(len(text) - 1, length - 1, -1):
                if text[end - 1] == wanted[-1] and text[end - length : end] == wanted:
                    found = tuple(text[end : end + room])
                    if found not in seen:
                        seen.add(found)
                        yield found


def merged(chains: Sequence[TokenIds]) -> tuple[TokenIds, DraftParents]:
    """The tree of several chains: common beginnings stand there once."""
    tokens, parents, places = list[int](), list[int](), dict[TokenIds, int]()
    for chain in chains:
        for length in range(1, len(chain) + 1):
            if chain[:length] not in places:
                parents.append(places.get(chain[: length - 1], -1))
                places[chain[:length]] = len(tokens)
                tokens.append(chain[length - 1])
    return tuple(tokens), tuple(parents)


def max_tree_nodes(draft: Draft) -> int:
    """The most nodes of a draft that is a tree, which may reach beyond the answer's end; 0: drafts are chains, or heads
    that are still to be trained.
    """
    if isinstance(draft, TreeDraft):
        return draft.max_nodes
    if isinstance(draft, LookupDraft) and draft.continuations > 1:
        return draft.k * draft.continuations
    return len(draft.medusa.tree) if isinstance(draft.medusa, MedusaHeads) else 0


def drafts_trees(draft: Draft) -> bool:
    """True if its drafts are trees; False: chains."""
    return isinstance(draft, TreeDraft | MedusaDraft) or max_tree_nodes(draft) > 0
