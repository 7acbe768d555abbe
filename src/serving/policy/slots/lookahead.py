"""Slot `lookahead`: what the device drafts while it waits for a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar, Literal, Protocol

from serving.core.draft_tree import first_path
from serving.core.scores import NUM_TOP_CANDIDATES
from serving.core.session import Session
from serving.learned.thresholds import Thresholds


class Lookahead(Protocol):
    @property
    def requested_scores(self) -> tuple[str, ...]: ...

    @property
    def max_steps(self) -> int:
        """The most tokens to draft behind an assumed verdict; 0: the device idles."""
        ...

    @property
    def monitors_link(self) -> bool:
        """True if it needs measurements of the link and the cloud."""
        ...

    def num_steps(self, session: Session) -> int:
        """Steps of the draft model while this verdict is awaited. Each extends every branch by one token; the first
        step of a branch that assumes no token finds that token.
        """
        ...

    def assumed_verdicts(self, session: Session) -> tuple[tuple[int, int | None], ...]:
        """The verdicts to prepare for: (accepted drafts, next token, or None for the draft model's own)."""
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
    """Drafts on one assumed verdict: where the draft is rejected first, and by which token (Synera, section 4.4).

    Args:
        thresholds: gives alpha, the profiled probability that a drafted token is accepted.
        max_steps: delta, the tokens to draft after the replacement; the paper gives no value.
        allow_full_acceptance: True if the assumed verdict may accept all drafts. The printed range ends at gamma - 1.
        last_weight: the weight at gamma - 1 without full acceptance: `rejection`, that of a rejection there, or
            `published`, alpha^gamma as the paper prints it.
        replacement: which of the draft model's three likeliest tokens replaces the rejected one: `sampled` among the
            others (the paper), or the `likeliest` other.
    """

    thresholds: Thresholds
    max_steps: int = 3
    allow_full_acceptance: bool = True
    last_weight: Literal["rejection", "published"] = field(default="rejection", metadata={"omitted_at_default": True})
    replacement: Literal["sampled", "likeliest"] = "sampled"
    requested_scores: ClassVar[tuple[str, ...]] = ("confidence",)
    monitors_link: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(
                f"policy.lookahead.max_steps is {self.max_steps}; draft at least 1 token ahead "
                "(policy/lookahead=none drafts none)"
            )
        if self.last_weight == "published" and self.allow_full_acceptance:
            raise ValueError(
                "policy.lookahead.last_weight=published is the weight of the last position in the printed range; it "
                "needs policy.lookahead.allow_full_acceptance=false"
            )

    def num_steps(self, session: Session) -> int:
        """`max_steps`, and behind all drafts one more, for the token that stands in for the target's."""
        return self.max_steps + any(b.accepted == len(session.in_flight_drafts or ()) for b in session.branches)

    def assumed_verdicts(self, session: Session) -> tuple[tuple[int, int | None], ...]:
        if not session.in_flight_drafts:
            return ()
        weights = rejection_weights(
            session.scores["confidence"], self.thresholds.alpha, self.allow_full_acceptance, self.last_weight
        )
        at = sample_index(weights, session.uniform("rejection"))
        if at == len(session.in_flight_drafts):
            return ((at, None),)
        others = [token for token in session.top_candidates[at] if token != session.in_flight_drafts[at]]
        pick = 0 if self.replacement == "likeliest" else int(session.uniform("alternative") * len(others))
        return ((at, others[pick]),) if others else ()


@dataclass(frozen=True)
class TreeLookahead:
    """Grows the next tree behind the first path of the tree that is being verified and the draft model's next token
    (SpecEdge, Park et al., 2025, proactive edge drafting). The tree grows by the rule of policy/draft=tree.

    SpecEdge starts behind the likeliest leaf; a tree's first path is the draft model's greedy text.
    """

    max_steps: ClassVar[int] = 1
    requested_scores: ClassVar[tuple[str, ...]] = ()
    monitors_link: ClassVar[bool] = False

    def num_steps(self, session: Session) -> int:  # noqa: ARG002
        """One for the token that stands in for the target's, and the tree."""
        return 2

    def assumed_verdicts(self, session: Session) -> tuple[tuple[int, int | None], ...]:
        path = first_path(session.draft_parents, len(session.in_flight_drafts or ()))
        return ((len(path), None),) if path else ()


@dataclass(frozen=True)
class HATLookahead:
    """Drafts on each likely token at the last draft's position, where the stop rule expects a rejection (HAT, section
    3.5).

    The drafted token is one of them: it assumes full acceptance, with the draft model's next token in place of the
    target's. The paper leaves open the number of candidates and what follows full acceptance.

    Args:
        num_candidates: candidates, the drafted token included; 3 at most.
        max_steps: the most steps, each a token for every candidate; fewer if lambda of Eq. 6 is fewer.
    """

    num_candidates: int = 3
    max_steps: int = 12
    requested_scores: ClassVar[tuple[str, ...]] = ()
    monitors_link: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.num_candidates <= NUM_TOP_CANDIDATES:
            raise ValueError(
                f"policy.lookahead.num_candidates is {self.num_candidates}; a drafter names its 1 to "
                f"{NUM_TOP_CANDIDATES} likeliest tokens"
            )
        if self.max_steps < 1:
            raise ValueError(f"policy.lookahead.max_steps is {self.max_steps}; draft at least 1 token ahead")

    def num_steps(self, session: Session) -> int:
        """lambda of Eq. 6: the drafting steps that fit into the shortest time to a verdict."""
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


def rejection_weights(
    confidence: Sequence[float],
    alpha: float,
    allow_full_acceptance: bool,
    last_weight: Literal["rejection", "published"] = "rejection",
) -> tuple[float, ...]:
    """For each position, the probability that it is the first rejected one, not normalised (Synera, section 4.4).

    A capped geometric distribution over 0..gamma (gamma: full acceptance), times 1 - c_t at position t. At gamma, where
    the paper gives no factor, it is the mean confidence. Without `allow_full_acceptance` it ends at gamma - 1, where
    the paper has alpha^gamma (`published`) in place of a rejection's weight.
    """
    gamma = len(confidence)
    base = [(1.0 - alpha) * alpha**t for t in range(gamma)]
    if last_weight == "published":
        base[-1] = alpha**gamma
    weights = [weight * (1.0 - c) for weight, c in zip(base, confidence, strict=True)]
    if allow_full_acceptance:
        weights.append(alpha**gamma * sum(confidence) / gamma)
    return tuple(weights)


def sample_index(weights: Sequence[float], uniform: float) -> int:
    """Draws an index by weight, with `uniform` in [0, 1); the last index if all weights are zero."""
    sums = list(accumulate(weights))
    return next((i for i, total in enumerate(sums) if total > uniform * sums[-1]), len(sums) - 1)
