"""Token-level routing: a trained router decides, token by token, whether the cloud writes it (CITER, Co-LLM)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

from serving.core.scores import ROUTE, Scorer, Scorers, Side, check_threshold
from serving.core.session import Session

Mode = Literal["joint", "small_only"]


class Router(Scorer, Protocol):
    """Scores the next token, and knows which scores are the cloud's."""

    @property
    def inputs(self) -> int:
        """How wide the hidden state is that it reads."""
        ...

    @property
    def threshold(self) -> float: ...

    @property
    def side(self) -> Side:
        """Scores on this side of a threshold go to the cloud."""
        ...

    def routes(self, score: float, threshold: float | None = None) -> bool:
        """Does the cloud write the token? With the router's own threshold where none is given."""
        ...

    def threshold_for(self, share: float) -> float:
        """The threshold that routes this share of the states."""
        ...


@dataclass(frozen=True)
class Routed:
    """The tokens on the router's side of the threshold are the cloud's to write (token routing, sections 2 and 3.1),
    with one token a draft that never travels (policy/draft=single, policy/verify=replace).

    Args:
        router: which side is routed is its own.
        threshold: CITER's tau or Co-LLM's eta; None: the router's own. A call may bring another.
        share: instead of a threshold, the one that routes this share of the states which the router kept for that.
        span: how many tokens the cloud writes, once it is asked.
        mode: joint, or small_only, in which nothing is routed.
    """

    router: Router
    threshold: float | None = None
    span: int = 1
    mode: Mode = "joint"
    share: float | None = None
    reach: ClassVar[Literal["some"]] = "some"
    probes: ClassVar[tuple[str, ...]] = (ROUTE,)

    def __post_init__(self) -> None:
        if self.span < 1:
            raise ValueError(f"policy.offload.span is {self.span}; the cloud writes at least 1 token")
        if self.mode not in get_args(Mode):
            raise ValueError(f"policy.offload.mode is {self.mode!r}; it is {' or '.join(get_args(Mode))}")
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
    def at(self) -> float:
        """The threshold of calls that bring none."""
        if self.share is not None:
            return self.router.threshold_for(self.share)
        return self.router.threshold if self.threshold is None else self.threshold

    def stays(self, s: Session) -> bool:
        return self.mode == "small_only" or bool(s.call.routing and s.call.routing.small_only)

    def ask(self, s: Session) -> int:
        own = s.call.routing
        if self.stays(s):
            return 0
        if own and own.large_only:
            return s.remaining
        at = self.at if own is None or own.threshold is None else own.threshold
        return min(self.span, s.remaining) if self.router.routes(s.scores[ROUTE][-1], at) else 0
