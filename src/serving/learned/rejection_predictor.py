"""WISP's rejection predictor as it is served: a small trained network, in numpy (section 4.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal

from serving.core.scores import LOGIT_SCORES
from serving.learned import arrays
from serving.learned.arrays import Floats
from serving.learned.mlp import NumpyMLP, layers_from

HEADER, WEIGHTS = "predictor.json", "predictor.safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class RejectionPredictor(NumpyMLP):
    """P(a drafted token is accepted), from its `LOGIT_SCORES`.

    Raises ValueError for layers that do not fit each other or the scores, and for a threshold that is no chance.
    """

    threshold: float = 0.5
    """A chance below it is a predicted rejection."""
    acceptance: float = 0.0
    """Share of drafted tokens that stood with this predictor, served on prompts that it was not trained on."""
    threshold_rule: str = ""
    """By which the threshold was chosen."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)
    feature_kind: ClassVar[Literal["scores"]] = "scores"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_features != len(LOGIT_SCORES):
            raise ValueError(f"a predictor reads {len(LOGIT_SCORES)} scores, this one {self.num_features}")
        if not 0 < self.threshold < 1:
            raise ValueError(f"the threshold is {self.threshold}; a chance of acceptance lies between 0 and 1")
        if not (isfinite(self.acceptance) and 0 <= self.acceptance <= 1):
            raise ValueError(f"the served acceptance is {self.acceptance}; it is a share")

    def __repr__(self) -> str:
        return f"predictor {self.hidden_widths} {self.digest[:12]} at {self.threshold!r}"

    def save(self, folder: Path) -> None:
        """Writes predictor.json and predictor.safetensors."""
        arrays.save(self.arrays(), folder / WEIGHTS)
        header = {
            "family": "mlp",
            "features": list(LOGIT_SCORES),
            "layers": [len(bias) for _, bias in self.layers],
            "sha256": self.digest,
            "threshold": self.threshold,
            "rule": self.threshold_rule,
            "acceptance": self.acceptance,
            "metrics": dict(self.metrics),
            "made_from": dict(self.made_from),
        }
        (folder / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def load(path: Path) -> RejectionPredictor:
    """Reads the artifact that the stage `training.stages.train_rejection_predictor` wrote.

    Raises ValueError that names the file when it is missing, damaged, or not of this form.
    """
    header = _read(path / HEADER, _read_header)
    saved = _read(path / WEIGHTS, arrays.load)
    try:
        return _from_header(header, saved)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"predictor {path / HEADER} cannot be used ({problem!r}); {_RETRAIN_ADVICE}") from None


_RETRAIN_ADVICE = "train again with stage=train"


def _read(file: Path, reader: Any) -> Any:
    if not file.is_file():
        raise ValueError(f"there is no {file}; policy.draft.predictor.path names a folder that stage=train made")
    try:
        return reader(file)
    except Exception as problem:  # SafetensorError is no ValueError
        raise ValueError(f"predictor {file} cannot be read ({problem!r}); {_RETRAIN_ADVICE}") from None


def _read_header(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _from_header(header: Mapping[str, Any], saved: dict[str, Floats]) -> RejectionPredictor:
    if header["features"] != list(LOGIT_SCORES):
        raise ValueError(f"it reads {header['features']}, a drafter gives {list(LOGIT_SCORES)}")
    found = RejectionPredictor(
        layers_from(saved, len(header["layers"])),
        saved["mean"],
        saved["deviation"],
        threshold=float(header["threshold"]),
        acceptance=float(header["acceptance"]),
        threshold_rule=str(header["rule"]),
        metrics=dict(header["metrics"]),
        made_from=dict(header["made_from"]),
    )
    if header["sha256"] != found.digest:
        raise ValueError(f"the weights beside it are {found.digest[:12]}, it was written for {header['sha256'][:12]}")
    return found
