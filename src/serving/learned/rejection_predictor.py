"""WISP's rejection predictor as an artifact: a small trained network, in numpy (section 4.1)."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import ClassVar, Literal

from serving.core.scores import ACCEPTANCE
from serving.learned.artifact import ArtifactFormat
from serving.learned.mlp_scorer import MLPScorer

HEADER, WEIGHTS = "predictor.json", "predictor.safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class RejectionPredictor(MLPScorer):
    """P(a drafted token is accepted), from its `LOGIT_SCORES`. A probability below the threshold predicts a rejection.

    Raises ValueError for layers that do not fit each other or the scores, and for a threshold outside 0 to 1.
    """

    acceptance: float = 0.0
    """Share of sent drafts that were accepted, when served on prompts outside the training set."""
    threshold_rule: str = ""
    """The rule by which the threshold was chosen."""
    name: ClassVar[str] = ACCEPTANCE
    feature_kind: ClassVar[Literal["scores"]] = "scores"
    files: ClassVar[ArtifactFormat] = ArtifactFormat("predictor", HEADER, WEIGHTS, "policy.draft.scorer.path")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.threshold < 1:
            raise ValueError(f"the threshold is {self.threshold}; a probability of acceptance lies between 0 and 1")
        if not (isfinite(self.acceptance) and 0 <= self.acceptance <= 1):
            raise ValueError(f"the served acceptance is {self.acceptance}; it is a share")


def load(path: Path) -> RejectionPredictor:
    """Reads the artifact that the stage `training.wisp.stages.train_rejection_predictor` wrote.

    Raises ValueError that names the file when it is missing, damaged, or not of this form.
    """
    return RejectionPredictor.load(path)
