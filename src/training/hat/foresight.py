"""Teaches Medusa heads to see past the target's next token (Medusa-1, Cai et al. 2024, section 2.2.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from serving.engines.torch.heads import blank
from serving.engines.torch.model import Model
from training.hat.batches import Batch, gather
from training.hat.recipe import Recipe
from training.hat.study import Study
from training.hat.trace import Trace

RANKS = 10
"""Of each head's guesses that a tree may be made of."""


class Foresight(Study):
    """`trained` are `count` heads over a frozen target; head k at position i is taught token i + 1 + k, and counts
    `decay` to the power of k.
    """

    def __init__(self, model: Model, count: int, recipe: Recipe, decay: float) -> None:
        super().__init__(blank(model, count).float().train(), (model.norm,), recipe)
        self._norm, self._decay = (model.norm,), decay

    def loss(self, batch: Batch) -> Tensor:
        total = torch.zeros((), device=batch.deep.device)
        for k, (logits, tokens, weights) in enumerate(self.guesses(batch), start=1):
            total = total + self._decay**k * (F.cross_entropy(logits, tokens, reduction="none") * weights).sum()
        return total

    def guesses(self, batch: Batch) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each head its logits (positions, vocabulary), what it is taught there, and what those positions count."""
        hidden = self._norm[0](batch.deep)
        found = []
        for k, head in enumerate(self.trained.children(), start=1):
            tokens = batch.tokens[:, 1 + k :]
            weights = batch.weights[:, : tokens.shape[1]]
            used = (weights > 0) & (tokens >= 0)
            found.append((head(hidden[:, : tokens.shape[1]][used]), tokens[used], weights[used]))
        return found

    @torch.no_grad()
    def accuracies(self, trace: Trace, texts: Sequence[int]) -> list[list[float]]:
        """How often each head's guess of each rank is right, over the answers of these texts."""
        found = []
        for logits, tokens, weights in self.guesses(gather(trace, texts, 0.0)):
            right = (logits.topk(RANKS, -1).indices == tokens[:, None]) * weights[:, None]
            found.append((right.sum(0) / weights.sum().clamp_min(1e-9)).tolist())
        return found

    @torch.no_grad()
    def agreement(self, batch: Batch) -> list[float]:
        return [
            float(((logits.argmax(-1) == tokens) * weights).sum() / weights.sum().clamp_min(1e-9))
            for logits, tokens, weights in self.guesses(batch)
        ]
