"""A family as a search tries it: trained and judged on validation, and on test for the record; nothing is served."""

from __future__ import annotations

import time

from serving.progress import Progress
from training.embedded_pair.draft_quality import auc
from training.fitting.trainer import Trainer
from training.wisp.families import Family, Fitted
from training.wisp.matched_recall import fpr_at
from training.wisp.mlp import MLP
from training.wisp.samples import Samples, Split

RECALLS = (0.75, 0.8, 0.95, 0.99)


def fitted(family: Family, split: Split, seed: int, trainer: Trainer, progress: Progress) -> Fitted:
    """Trained; a network says how far it is, trees are done before they could."""
    if isinstance(family, MLP):
        return family.fit(split.train, split.validation, seed, trainer, progress)
    return family.fit(split.train, split.validation, seed)


def measure(family: Family, split: Split, seed: int, trainer: Trainer, progress: Progress) -> dict[str, float]:
    """`validation/auc`, `test/auc`, FPR at equal recall of both, and the seconds that training took."""
    began = time.perf_counter()
    found = fitted(family, split, seed, trainer, progress)
    taken = time.perf_counter() - began
    parts = {"validation": split.validation, "test": split.test}
    judged = {f"{part}/{name}": value for part, own in parts.items() for name, value in _judged(found, own).items()}
    return judged | {"training_s": taken}


def _judged(found: Fitted, samples: Samples) -> dict[str, float]:
    chances = found.chances(samples.features)
    area = auc(chances, samples.accepted)
    assert area is not None, "a split has both kinds of tokens in every part"
    return {"auc": area} | {f"fpr_at_{at:g}": fpr_at(chances, samples.accepted, at) for at in RECALLS}
