"""Teaches the adapter what the target's deeper layers make of a token (HAT, section 3.4, Eq. 4)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from serving.engines.torch.draft_heads import blank
from serving.engines.torch.model import Model
from training.hat.batches import Batch
from training.hat.recipe import Recipe
from training.hat.study import Study


class Distillation(Study):
    """`trained` is the adapter behind the first `shallow` layers of `model`; the loss is
    SmoothL1(f_L, f_S) + w_ce CE(H(f_L), H(f_S)), where f are the states that the head H is fed with.
    """

    def __init__(self, model: Model, shallow: int, recipe: Recipe, w_ce: float) -> None:
        super().__init__(trainable(model, shallow), (model.norm, model.head), recipe)
        self._norm, self._head, self._rotary = (model.norm,), (model.head,), model.rotary
        self._window, self._w_ce = model.windows[shallow - 1], w_ce

    def states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(f_L, f_S) at the positions that count, each of shape (positions, hidden)."""
        n, used = batch.tokens.shape[1], batch.weights > 0
        rotary = tuple(each.to(batch.shallow.device) for each in self._rotary.between(0, n))
        mask = _mask(n, self._window, batch.shallow.device)
        hidden = self.trained(batch.shallow, position_embeddings=rotary, attention_mask=mask)
        return self._norm[0](batch.deep[used]), self._norm[0](hidden[used])

    def loss(self, batch: Batch) -> Tensor:
        deep, own = self.states(batch)
        head = self._head[0]
        apart = F.smooth_l1_loss(own, deep, reduction="none").mean(-1)
        surprise = F.cross_entropy(head(own), head(deep).softmax(-1), reduction="none")
        return ((apart + self._w_ce * surprise) * batch.weights[batch.weights > 0]).sum()

    @torch.no_grad()
    def agreement(self, batch: Batch) -> list[float]:
        deep, own = (self._head[0](states).argmax(-1) for states in self.states(batch))
        return [float(((deep == own) * batch.weights[batch.weights > 0]).sum())]


def trainable(model: Model, shallow: int) -> nn.Module:
    """A blank adapter in fp32 that can be run on whole padded texts, and differentiated."""
    adapter = blank(model, shallow).float().requires_grad_(True).train()
    for module in adapter.modules():
        if hasattr(module, "config"):
            config: Any = deepcopy(module.config)
            config._attn_implementation = "sdpa"
            module.config = config
    return adapter


def _mask(n: int, window: int | None, device: torch.device) -> Tensor | None:
    """Which of `n` tokens sees which, of shape (1, 1, n, n), for a window that is shorter; else None: all before it."""
    if window is None or n <= window:
        return None
    place = torch.arange(n, device=device)
    back = place[:, None] - place
    return ((back >= 0) & (back < window))[None, None]
