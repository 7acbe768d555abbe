"""WISP's rejection predictor as an artifact: a small trained network, in numpy (section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal

from serving.core.scores import ACCEPTANCE, LOGIT_SCORES
from serving.learned.artifact import ArtifactFormat, Floats, check_digest
from serving.learned.mlp import NumpyMLP, layers_from

HEADER, WEIGHTS = "predictor.json", "predictor.safetensors"
FORMAT = ArtifactFormat("predictor", HEADER, WEIGHTS, "policy.draft.scorer.path")



@dataclass(frozen=True, eq=False, repr=False)
class RejectionPredictor(NumpyMLP):
    """P(a drafted token is accepted), from its `LOGIT_SCORES`.

    Raises ValueError for layers that do not fit each other or the scores, and for a threshold outside 0 to 1.
    """

    threshold: float = 0.5
    """A lower probability is a predicted rejection."""
    acceptance: float = 0.0
    """Share of sent drafts that were accepted, when served on prompts outside the training set."""
    threshold_rule: str = ""
    """The rule by which the threshold was chosen."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)
    name: ClassVar[str] = ACCEPTANCE
    feature_kind: ClassVar[Literal["scores"]] = "scores"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_features != len(LOGIT_SCORES):
            raise ValueError(f"a predictor reads {len(LOGIT_SCORES)} scores, this one {self.num_features}")
        if not 0 < self.threshold < 1:
            raise ValueError(f"the threshold is {self.threshold}; a probability of acceptance lies between 0 and 1")
        if not (isfinite(self.acceptance) and 0 <= self.acceptance <= 1):
            raise ValueError(f"the served acceptance is {self.acceptance}; it is a share")

    def __repr__(self) -> str:
        return f"predictor {self.hidden_widths} {self.digest[:12]} at {self.threshold!r}"

    def save(self, folder: Path) -> None:
        """Writes predictor.json and predictor.safetensors."""
        header = {
            "family": "mlp",
            "features": list(LOGIT_SCORES),
            "layers": [len(bias) for _, bias in self.layers],
            "sha256": self.digest,
            "threshold": self.threshold,
            "threshold_rule": self.threshold_rule,
            "acceptance": self.acceptance,
            "metrics": dict(self.metrics),
            "made_from": dict(self.made_from),
        }
        FORMAT.save(folder, header, self.arrays())


def load(path: Path) -> RejectionPredictor:
    """Reads the artifact that the stage `training.wisp.stages.train_rejection_predictor` wrote.

    Raises ValueError that names the file when it is missing, damaged, or not of this form.
    """
    header, saved = FORMAT.read_header(path), FORMAT.read_weights(path)
    with FORMAT.parsing(path):
        return _from_header(header, saved)


def _from_header(header: Mapping[str, Any], saved: dict[str, Floats]) -> RejectionPredictor:
    if header["features"] != list(LOGIT_SCORES):
        raise ValueError(f"it reads {header['features']}, a drafter computes {list(LOGIT_SCORES)}")
    found = RejectionPredictor(
        layers_from(saved, len(header["layers"])),
        saved["mean"],
        saved["std"],
        threshold=float(header["threshold"]),
        acceptance=float(header["acceptance"]),
        threshold_rule=str(header["threshold_rule"]),
        metrics=dict(header["metrics"]),
        made_from=dict(header["made_from"]),
    )
    check_digest(header["sha256"], found.digest)
    return found
