"""How well a predictor tells accepted from rejected tokens: Tables 4 and 10 of WISP, and calibration."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from training.embedded_pair.draft_quality import auc
from training.wisp.windows import Flags, Floats

BINS = 10


@dataclass(frozen=True)
class Confusion:
    """Counts at one threshold. Accepted is the positive class, as in Table 10."""

    tn: int
    fp: int
    fn: int
    tp: int

    @property
    def recall(self) -> float:
        """Share of the accepted tokens that are let through (Rec1)."""
        return self.tp / max(1, self.tp + self.fn)

    @property
    def specificity(self) -> float:
        """Share of the rejected tokens that are told."""
        return self.tn / max(1, self.tn + self.fp)

    @property
    def accuracy(self) -> float:
        return (self.tn + self.tp) / max(1, self.tn + self.fp + self.fn + self.tp)


def confusion(chances: Floats, accepted: Flags, threshold: float) -> Confusion:
    through = chances >= threshold
    cells = [(stood, let) for stood in (False, True) for let in (False, True)]
    return Confusion(*(int(((accepted == stood) & (through == let)).sum()) for stood, let in cells))


def evaluate(chances: Floats, accepted: Flags, threshold: float) -> dict[str, Any]:
    """Metrics at `threshold` by name; auc is null with one kind of token only.

    The calibration error is the mean distance of confidence and share in ten bins of equal width, weighted by tokens
    (Naeini et al. 2015).
    """
    found = confusion(chances, accepted, threshold)
    bins = reliability(chances, accepted)
    return {
        "threshold": threshold,
        "samples": len(accepted),
        "accuracy": found.accuracy,
        "auc": auc(chances, accepted),
        "recall": found.recall,
        "specificity": found.specificity,
        "fpr": 1 - found.specificity,
        "balanced_accuracy": (found.recall + found.specificity) / 2,
        "confusion": asdict(found),
        "ece": sum(row["tokens"] * abs(row["chance"] - row["accepted"]) for row in bins) / max(1, len(accepted)),
        "brier": float(np.mean((chances - accepted) ** 2)),
        "reliability": bins,
    }


def reliability(chances: Floats, accepted: Flags) -> list[dict[str, float]]:
    """Ten bins of chance: from, to, tokens, mean chance, share accepted; empty bins are left out."""
    place = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
    return [
        {
            "from": i / BINS,
            "to": (i + 1) / BINS,
            "tokens": int((place == i).sum()),
            "chance": float(chances[place == i].mean()),
            "accepted": float(accepted[place == i].mean()),
        }
        for i in range(BINS)
        if (place == i).any()
    ]
