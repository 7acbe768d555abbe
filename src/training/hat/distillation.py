"""Teaches the adapter what the target's deeper layers make of a token (HAT, section 3.4, Eq. 4).

Teaches Medusa heads to see past the target's next token (Medusa-1, Cai et al. 2024, section 2.2.1).

How what is trained beside a frozen target learns: AdamW, a warm-up, a cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, distributed, nn
from torch.optim.lr_scheduler import LambdaLR

from serving.engines.torch.draft_heads import init_adapter, init_medusa_heads
from serving.engines.torch.model import DecomposedModel
from training.hat.batches import HATRecipe, HiddenStateBatch, collate
from training.hat.trace import HiddenStateTrace


class FrozenTargetModule(LightningModule):
    """Trains `trained_module` by `recipe`; the loss is for those who derive from it to say. `frozen` goes where it
    goes.
    """

    def __init__(self, trained_module: nn.Module, frozen: tuple[nn.Module, ...], recipe: HATRecipe) -> None:
        super().__init__()
        self.trained_module = trained_module
        self._recipe = recipe
        # In a tuple, so that the target's weights are neither trained nor saved with the module's.
        self._frozen = frozen

    def on_fit_start(self) -> None:
        for module in self._frozen:
            module.to(self.device)

    def on_fit_end(self) -> None:
        for module in self._frozen:
            module.cpu()

    def loss(self, batch: HiddenStateBatch) -> Tensor:
        """The weighted mean over a batch's positions."""
        raise NotImplementedError

    def top1_agreement(self, batch: HiddenStateBatch) -> list[float]:
        """Shares of the weight at which what is trained guesses the target's token, one a head."""
        raise NotImplementedError

    def training_step(self, batch: HiddenStateBatch, _: int) -> Tensor:
        return self.loss(_rank_shard(batch))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        recipe = self._recipe
        optimizer = torch.optim.AdamW(
            self.trained_module.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, recipe.lr_factor), "interval": "step"},
        }


def _rank_shard(batch: HiddenStateBatch) -> HiddenStateBatch:
    """What this process has of a batch, where several train together."""
    if distributed.is_available() and distributed.is_initialized():
        return batch.shard(distributed.get_rank(), distributed.get_world_size())
    return batch


class AdapterDistillation(FrozenTargetModule):
    """`trained` is the adapter behind the first `shallow` layers of `model`; the loss is
    SmoothL1(f_L, f_S) + w_ce CE(H(f_L), H(f_S)), where f are the states that the head H is fed with.
    """

    def __init__(self, model: DecomposedModel, shallow_layers: int, recipe: HATRecipe, ce_weight: float) -> None:
        super().__init__(trainable_adapter(model, shallow_layers), (model.norm, model.lm_head), recipe)
        self._norm, self._head, self._rotary = (model.norm,), (model.lm_head,), model.rotary
        self._attention_window, self._ce_weight = model.sliding_windows[shallow_layers - 1], ce_weight

    def deep_and_adapted(self, batch: HiddenStateBatch) -> tuple[Tensor, Tensor]:
        """(f_L, f_S) at the positions that count, each of shape (positions, hidden)."""
        n, used = batch.tokens.shape[1], batch.loss_weights > 0
        rotary = tuple(each.to(batch.shallow.device) for each in self._rotary.for_range(0, n))
        mask = _window_mask(n, self._attention_window, batch.shallow.device)
        hidden = self.trained_module(batch.shallow, position_embeddings=rotary, attention_mask=mask)
        return self._norm[0](batch.deep[used]), self._norm[0](hidden[used])

    def loss(self, batch: HiddenStateBatch) -> Tensor:
        deep, own = self.deep_and_adapted(batch)
        head = self._head[0]
        apart = F.smooth_l1_loss(own, deep, reduction="none").mean(-1)
        surprise = F.cross_entropy(head(own), head(deep).softmax(-1), reduction="none")
        return ((apart + self._ce_weight * surprise) * batch.loss_weights[batch.loss_weights > 0]).sum()

    @torch.no_grad()
    def top1_agreement(self, batch: HiddenStateBatch) -> list[float]:
        deep, own = (self._head[0](states).argmax(-1) for states in self.deep_and_adapted(batch))
        return [float(((deep == own) * batch.loss_weights[batch.loss_weights > 0]).sum())]


def trainable_adapter(model: DecomposedModel, shallow_layers: int) -> nn.Module:
    """A blank adapter in fp32 that can be run on whole padded texts, and differentiated."""
    adapter = init_adapter(model, shallow_layers).float().requires_grad_(True).train()
    for module in adapter.modules():
        if hasattr(module, "config"):
            config: Any = deepcopy(module.config)
            config._attn_implementation = "sdpa"
            module.config = config
    return adapter


def _window_mask(n: int, window: int | None, device: torch.device) -> Tensor | None:
    """Which of `n` tokens sees which, of shape (1, 1, n, n), for a window that is shorter; else None: all before it."""
    if window is None or n <= window:
        return None
    place = torch.arange(n, device=device)
    back = place[:, None] - place
    return ((back >= 0) & (back < window))[None, None]


MAX_RANKS = 10
"""Of each head's guesses that a tree may be made of."""


class MedusaModule(FrozenTargetModule):
    """`trained` are `count` heads over a frozen target; head k at position i is taught token i + 1 + k, and counts
    `decay` to the power of k.
    """

    def __init__(self, model: DecomposedModel, num_heads: int, recipe: HATRecipe, decay: float) -> None:
        super().__init__(init_medusa_heads(model, num_heads).float().train(), (model.norm,), recipe)
        self._norm, self._decay = (model.norm,), decay

    def loss(self, batch: HiddenStateBatch) -> Tensor:
        total = torch.zeros((), device=batch.deep.device)
        for k, (logits, tokens, weights) in enumerate(self.predictions(batch), start=1):
            total = total + self._decay**k * (F.cross_entropy(logits, tokens, reduction="none") * weights).sum()
        return total

    def predictions(self, batch: HiddenStateBatch) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each head its logits (positions, vocabulary), what it is taught there, and what those positions count."""
        hidden = self._norm[0](batch.deep)
        found = []
        for k, head in enumerate(self.trained_module.children(), start=1):
            tokens = batch.tokens[:, 1 + k :]
            weights = batch.loss_weights[:, : tokens.shape[1]]
            used = (weights > 0) & (tokens >= 0)
            found.append((head(hidden[:, : tokens.shape[1]][used]), tokens[used], weights[used]))
        return found

    @torch.no_grad()
    def rank_accuracies(self, trace: HiddenStateTrace, texts: Sequence[int]) -> list[list[float]]:
        """How often each head's guess of each rank is right, over the answers of these texts."""
        found = []
        for logits, tokens, weights in self.predictions(collate(trace, texts, 0.0)):
            right = (logits.topk(MAX_RANKS, -1).indices == tokens[:, None]) * weights[:, None]
            found.append((right.sum(0) / weights.sum().clamp_min(1e-9)).tolist())
        return found

    @torch.no_grad()
    def top1_agreement(self, batch: HiddenStateBatch) -> list[float]:
        return [
            float(((logits.argmax(-1) == tokens) * weights).sum() / weights.sum().clamp_min(1e-9))
            for logits, tokens, weights in self.predictions(batch)
        ]
