"""Token routing: a trained router decides for each token whether the cloud writes it (CITER, Co-LLM)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

from serving.core.scores import Scorer, ThresholdSide, check_threshold
from serving.core.session import Session

RoutingMode = Literal["joint", "small_only"]


class RoutingScorer(Scorer, Protocol):
    """A trained score of the next token, with the threshold beyond which the cloud writes it."""

    @property
    def threshold(self) -> float: ...

    @property
    def side(self) -> ThresholdSide:
        """Scores on this side of the threshold go to the cloud."""
        ...

    def routes(self, score: float, threshold: float | None = None) -> bool:
        """True if the cloud writes the token. `threshold` None: the router's own."""
        ...

    def threshold_for(self, share: float) -> float:
        """The threshold that routes this share of the states."""
        ...


@dataclass(frozen=True)
class RoutedOffload:
    """The cloud writes the tokens whose score is on the routed side of the threshold (token routing, sections 2, 3.1).

    Drafts are one token long and are not sent (policy/draft=single_token, policy/verify=replace).

    Args:
        scorer: a router; it also says which side is routed.
        threshold: CITER's tau or Co-LLM's eta; None: the router's own. A request may override it.
        num_cloud_tokens: tokens that the cloud writes each time.
        mode: joint, or small_only, in which nothing is routed.
        share: instead of a threshold: route this share of the router's held-out states.
    """

    scorer: RoutingScorer
    threshold: float | None = None
    num_cloud_tokens: int = 1
    mode: RoutingMode = "joint"
    share: float | None = None
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.num_cloud_tokens < 1:
            raise ValueError(
                f"policy.offload.num_cloud_tokens is {self.num_cloud_tokens}; the cloud writes at least 1 token"
            )
        if self.mode not in get_args(RoutingMode):
            raise ValueError(f"policy.offload.mode is {self.mode!r}; it is {' or '.join(get_args(RoutingMode))}")
        if self.threshold is not None:
            check_threshold(self.threshold)
        if self.share is not None and not 0.0 <= self.share <= 1.0:
            raise ValueError(f"policy.offload.share is {self.share}; it is a share of the tokens: 0 to 1")
        if self.share is not None and self.threshold is not None:
            raise ValueError(
                f"policy.offload: threshold={self.threshold} and share={self.share} both say what is routed; name one"
            )

    @property
    def effective_threshold(self) -> float:
        """The threshold of requests without their own."""
        if self.share is not None:
            return self.scorer.threshold_for(self.share)
        return self.scorer.threshold if self.threshold is None else self.threshold

    def never_offloads(self, session: Session) -> bool:
        return self.mode == "small_only" or bool(session.request.routing and session.request.routing.small_only)

    def tokens_to_offload(self, session: Session) -> int:
        options = session.request.routing
        if self.never_offloads(session):
            return 0
        if options and options.large_only:
            return session.remaining_tokens
        threshold = self.effective_threshold if options is None or options.threshold is None else options.threshold
        routed = self.scorer.routes(session.scores[self.scorer.name][-1], threshold)
        return min(self.num_cloud_tokens, session.remaining_tokens) if routed else 0
