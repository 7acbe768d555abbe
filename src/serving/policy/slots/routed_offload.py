"""Token-level routing: a trained router decides, token by token, whether the cloud writes it (CITER, Co-LLM)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

from serving.core.scores import ROUTE, Scorer, Scorers, ThresholdSide, check_threshold
from serving.core.session import Session

RoutingMode = Literal["joint", "small_only"]


class RoutingScorer(Scorer, Protocol):
    """Scores the next token, and knows which scores are the cloud's."""

    @property
    def num_features(self) -> int:
        """How wide the hidden state is that it reads."""
        ...

    @property
    def threshold(self) -> float: ...

    @property
    def side(self) -> ThresholdSide:
        """Scores on this side of a threshold go to the cloud."""
        ...

    def routes(self, score: float, threshold: float | None = None) -> bool:
        """Does the cloud write the token? With the router's own threshold where none is given."""
        ...

    def threshold_for(self, share: float) -> float:
        """The threshold that routes this share of the states."""
        ...


@dataclass(frozen=True)
class RoutedOffload:
    """The tokens on the router's side of the threshold are the cloud's to write (token routing, sections 2 and 3.1),
    with one token a draft that never travels (policy/draft=single_token, policy/verify=replace).

    Args:
        router: which side is routed is its own.
        threshold: CITER's tau or Co-LLM's eta; None: the router's own. A call may bring another.
        share: instead of a threshold, the one that routes this share of the states which the router kept for that.
        span: how many tokens the cloud writes, once it is asked.
        mode: joint, or small_only, in which nothing is routed.
    """

    router: RoutingScorer
    threshold: float | None = None
    num_cloud_tokens: int = 1
    mode: RoutingMode = "joint"
    share: float | None = None
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = (ROUTE,)

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
    def scorers(self) -> Scorers:
        return {ROUTE: self.router}

    @property
    def effective_threshold(self) -> float:
        """The threshold of calls that bring none."""
        if self.share is not None:
            return self.router.threshold_for(self.share)
        return self.router.threshold if self.threshold is None else self.threshold

    def never_offloads(self, session: Session) -> bool:
        return self.mode == "small_only" or bool(session.request.routing and session.request.routing.small_only)

    def tokens_to_offload(self, session: Session) -> int:
        own = session.request.routing
        if self.never_offloads(session):
            return 0
        if own and own.large_only:
            return session.remaining_tokens
        at = self.effective_threshold if own is None or own.threshold is None else own.threshold
        return (
            min(self.num_cloud_tokens, session.remaining_tokens)
            if self.router.routes(session.scores[ROUTE][-1], at)
            else 0
        )
