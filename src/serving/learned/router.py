"""A token router as an artifact: a trained network over the device model's last hidden state (CITER, Co-LLM)."""

from dataclasses import dataclass
from math import nextafter
from pathlib import Path
from typing import ClassVar, Literal

from serving.core.scores import THRESHOLD_SIDES, PlannedScorer, ThresholdSide, check_threshold
from serving.learned.artifact import ArtifactFormat
from serving.learned.mlp_scorer import MLPScorer

HEADER, WEIGHTS = "router.json", "router.safetensors"
ROUTE = "route"


@dataclass(frozen=True, eq=False, repr=False)
class TokenRouter(MLPScorer):
    """Scores the next token by the hidden state that the device model predicts it from; the threshold decides which
    model writes the token.

    Raises ValueError for layers that do not fit each other, a threshold outside 0 to 1, or an unknown side.
    """

    side: ThresholdSide = "below"
    """Tokens with scores on this side of the threshold go to the cloud. CITER's score is the probability that the
    device's token is preferred, so `below`; Co-LLM's is P(Z_t = 1), the probability that it defers, so `above`.
    """
    family: str = "citer"
    heldout_scores: tuple[float, ...] = ()
    """Sorted scores of held-out states; they give the share that a threshold routes."""
    name: ClassVar[str] = ROUTE
    feature_kind: ClassVar[Literal["hidden"]] = "hidden"
    files: ClassVar[ArtifactFormat] = ArtifactFormat("router", HEADER, WEIGHTS, "policy.offload.scorer.path")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side not in THRESHOLD_SIDES:
            raise ValueError(
                f"the side is {self.side!r}; scores {' or '.join(THRESHOLD_SIDES)} the threshold are routed"
            )
        check_threshold(self.threshold)

    def __repr__(self) -> str:
        return f"{self.family} router {self.hidden_widths} {self.digest[:12]}, {self.side} {self.threshold!r}"

    def routes(self, score: float, threshold: float | None = None) -> bool:
        """True if the cloud writes the token."""
        at = self.threshold if threshold is None else threshold
        return score < at if self.side == "below" else score > at

    def threshold_for(self, share: float) -> float:
        """The threshold that routes `share` of the held-out states; without these, the router's own threshold.

        For a share of 1 it is just beyond 0 to 1, since a score may be rounded to the end of that range.
        """
        if not self.heldout_scores:
            return self.threshold
        if share == 1:
            return nextafter(1.0, 2.0) if self.side == "below" else nextafter(0.0, -1.0)
        n, k = len(self.heldout_scores), round(share * len(self.heldout_scores))
        route_none, route_all = (0.0, 1.0) if self.side == "below" else (1.0, 0.0)
        if share == 0 or k == n:
            return route_all if share else route_none
        return self.heldout_scores[k if self.side == "below" else n - k - 1]


def load(path: Path) -> TokenRouter:
    """Reads the artifact that `training.routing.stages` wrote.

    Raises ValueError that names the file when it is missing, damaged, or not of this form.
    """
    return TokenRouter.load(path)


def planned_load(path: object) -> PlannedScorer:  # noqa: ARG001
    """What a plan knows of a router before it is trained."""
    return PlannedScorer(TokenRouter.feature_kind)
