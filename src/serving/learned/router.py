"""A token router as it is served: a trained network over the device model's last hidden state (CITER, Co-LLM)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from serving.core.scores import THRESHOLD_SIDES, ThresholdSide, check_threshold
from serving.learned import arrays
from serving.learned.mlp import NumpyMLP, layers_from

HEADER, WEIGHTS = "router.json", "router.safetensors"
VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class TokenRouter(NumpyMLP):
    """The score of the next token, from the hidden state that the device model writes it from; and which scores are the
    cloud's to write.

    Raises ValueError for layers that do not fit each other, a threshold that is no chance, or an unknown side.
    """

    threshold: float = 0.5
    side: ThresholdSide = "below"
    """Scores on this side of the threshold go to the cloud. CITER's score is the chance that the device's own token is
    preferred, so `below`; Co-LLM's is P(Z_t = 1), the chance that it defers, so `above`.
    """
    family: str = "citer"
    heldout_scores: tuple[float, ...] = ()
    """Of held-out states, in order: what share of them a threshold routes."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)
    feature_kind: ClassVar[Literal["hidden"]] = "hidden"

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
        """Does the cloud write this token?"""
        at = self.threshold if threshold is None else threshold
        return score < at if self.side == "below" else score > at

    def threshold_for(self, share: float) -> float:
        """The threshold that routes `share` of the held-out states; the artifact's own where it has none of them."""
        if not self.heldout_scores:
            return self.threshold
        n, k = len(self.heldout_scores), round(share * len(self.heldout_scores))
        nobody, everybody = (0.0, 1.0) if self.side == "below" else (1.0, 0.0)
        if share == 0 or k == n:
            return everybody if share else nobody
        return self.heldout_scores[k if self.side == "below" else n - k - 1]

    def save(self, folder: Path) -> None:
        """Writes router.json and router.safetensors."""
        arrays.save(self.arrays(), folder / WEIGHTS)
        header = {
            "version": VERSION,
            "family": self.family,
            "features": {"hidden": self.num_features},
            "layers": [len(bias) for _, bias in self.layers],
            "sha256": self.digest,
            "threshold": self.threshold,
            "routed": self.side,
            "scores": list(self.heldout_scores),
            "metrics": dict(self.metrics),
            "made_from": dict(self.made_from),
        }
        (folder / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def load(path: Path) -> TokenRouter:
    """Reads the artifact that `training.routing.stages` wrote.

    Raises ValueError that names the file when it is missing, damaged, or not of this form.
    """
    if not (path / HEADER).is_file():
        raise ValueError(
            f"there is no {path / HEADER}; policy.offload.router.path names a folder that stage=train made"
        )
    try:
        return _from_header(json.loads((path / HEADER).read_text(encoding="utf-8")), path)
    except Exception as problem:  # SafetensorError is no ValueError
        raise ValueError(f"router {path / HEADER} cannot be used ({problem!r}); train again with stage=train") from None


def _from_header(header: Mapping[str, Any], path: Path) -> TokenRouter:
    if header["version"] != VERSION:
        raise ValueError(f"it is of version {header['version']}, this code reads {VERSION}")
    saved = arrays.load(path / WEIGHTS)
    found = TokenRouter(
        layers_from(saved, len(header["layers"])),
        saved["mean"],
        saved["deviation"],
        threshold=float(header["threshold"]),
        side=header["routed"],
        family=str(header["family"]),
        heldout_scores=tuple(header["scores"]),
        metrics=dict(header["metrics"]),
        made_from=dict(header["made_from"]),
    )
    if header["sha256"] != found.digest:
        raise ValueError(f"the weights beside it are {found.digest[:12]}, it was written for {header['sha256'][:12]}")
    return found
