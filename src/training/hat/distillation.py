"""Losses of modules beside a frozen target: HAT's adapter and Medusa heads.

The adapter learns the states of the target's deeper layers (HAT, section 3.4, Eq. 4). Medusa heads learn the tokens
behind the target's next one (Medusa-1, Cai et al. 2024, section 2.2.1).
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from serving.engines.torch.draft_heads import MedusaHead, init_adapter, init_medusa_heads
from serving.engines.torch.model import DecomposedModel
from training.fitting.recipe import HATRecipe
from training.fitting.token_subset import TokenSubset
from training.hat.serving_eval import MAX_RANKS
from training.hat.trace import HiddenStateTrace
from training.hat.train import FrozenTargetModule, HiddenStateBatch, collate

MAX_LOSS_TOKENS = 16_384
"""Of a larger vocabulary the losses are over so many tokens, or as many as the texts use."""


def loss_tokens(trace: HiddenStateTrace, vocab_size: int) -> TokenSubset | None:
    """The tokens that the losses are over, in their order; None for all of a vocabulary of `MAX_LOSS_TOKENS` or fewer.

    They are the texts' own, and then the first of the vocabulary: byte-pair merges come in the order of their counts.
    """
    if vocab_size <= MAX_LOSS_TOKENS:
        return None
    used: Tensor = torch.unique(trace.tokens.long())
    others = torch.ones(vocab_size, dtype=torch.bool)
    others[used] = False
    added = others.nonzero()[:, 0][: max(0, MAX_LOSS_TOKENS - len(used))]
    return TokenSubset(torch.cat([used, added]).sort().values, vocab_size)


class AdapterDistillation(FrozenTargetModule):
    """Trains the adapter behind the first `shallow_layers` layers of `model`.

    The loss is SmoothL1(f_L, f_S) + ce_weight CE(H(f_L), H(f_S)), where f are the input states of the head H, over
    `tokens` of its vocabulary (None: all).
    """

    def __init__(
        self,
        model: DecomposedModel,
        shallow_layers: int,
        recipe: HATRecipe,
        ce_weight: float,
        tokens: TokenSubset | None = None,
    ) -> None:
        head = model.lm_head if tokens is None else tokens.head(model.lm_head)
        super().__init__(trainable_adapter(model, shallow_layers), (model.norm, model.lm_head, head), recipe)
        self._norm, self._whole_head, self._head = (model.norm,), (model.lm_head,), (head,)
        self._rotary = model.rotary
        self._attention_window, self._ce_weight = model.sliding_windows[shallow_layers - 1], ce_weight

    def deep_and_adapted(self, batch: HiddenStateBatch) -> tuple[Tensor, Tensor]:
        """(f_L, f_S) at the positions with a weight, each of shape (positions, hidden)."""
        n, used = batch.tokens.shape[1], batch.loss_weights > 0
        rotary = tuple(each.to(batch.shallow.device) for each in self._rotary.for_range(0, n))
        mask = _window_mask(n, self._attention_window, batch.shallow.device)
        hidden = self.trained_module(batch.shallow, position_embeddings=rotary, attention_mask=mask)
        return self._norm[0](batch.deep[used]), self._norm[0](hidden[used])

    def loss(self, batch: HiddenStateBatch) -> Tensor:
        deep, own = self.deep_and_adapted(batch)
        head = self._head[0]
        distance = F.smooth_l1_loss(own, deep, reduction="none").mean(-1)
        cross_entropy = F.cross_entropy(head(own), head(deep).softmax(-1), reduction="none")
        return ((distance + self._ce_weight * cross_entropy) * batch.loss_weights[batch.loss_weights > 0]).sum()

    @torch.no_grad()
    def top1_agreement(self, batch: HiddenStateBatch) -> list[float]:
        deep, own = (self._whole_head[0](states).argmax(-1) for states in self.deep_and_adapted(batch))
        return [float(((deep == own) * batch.loss_weights[batch.loss_weights > 0]).sum())]


def trainable_adapter(model: DecomposedModel, shallow_layers: int) -> nn.Module:
    """A new adapter in fp32 that runs on whole padded texts and can be differentiated."""
    adapter = init_adapter(model, shallow_layers).float().requires_grad_(True).train()
    for module in adapter.modules():
        if hasattr(module, "config"):
            config: Any = deepcopy(module.config)
            config._attn_implementation = "sdpa"
            module.config = config
    return adapter


def _window_mask(n: int, window: int | None, device: torch.device) -> Tensor | None:
    """Attention mask (1, 1, n, n) of a sliding window shorter than `n`; None for plain causal attention."""
    if window is None or n <= window:
        return None
    place = torch.arange(n, device=device)
    back = place[:, None] - place
    return ((back >= 0) & (back < window))[None, None]


class MedusaModule(FrozenTargetModule):
    """Trains `num_heads` heads over a frozen target. Head k at position i learns token i + 1 + k, with the weight
    `decay` to the power of k. Only the rows of `loss_over` in its vocabulary are trained (None: all).
    """

    def __init__(
        self,
        model: DecomposedModel,
        num_heads: int,
        recipe: HATRecipe,
        decay: float,
        loss_over: TokenSubset | None = None,
    ) -> None:
        heads = init_medusa_heads(model, num_heads).float().train()
        self._whole_outs: list[Tensor] = []
        if loss_over is not None:
            for head in _medusa_heads(heads):
                self._whole_outs.append(head.out.weight.detach())
                head.out = loss_over.head(head.out).requires_grad_(True)
        super().__init__(heads, (model.norm,), recipe)
        self._norm, self._decay, self._loss_over = (model.norm,), decay, loss_over
        self._places = loss_over.places if loss_over else None

    def whole_heads(self) -> nn.ModuleList:
        """The trained heads over the whole vocabulary; rows that were not trained are those of the target's head."""
        found = deepcopy(self.trained_module)
        assert isinstance(found, nn.ModuleList)
        if self._loss_over is None:
            return found
        for head, whole in zip(_medusa_heads(found), self._whole_outs, strict=True):
            whole[self._loss_over.tokens] = head.out.weight.detach()
            head.out = nn.Linear(whole.shape[1], whole.shape[0], bias=False, device="meta")
            head.out.weight = nn.Parameter(whole)
        return found

    def loss(self, batch: HiddenStateBatch) -> Tensor:
        total = torch.zeros((), device=batch.deep.device)
        for k, (logits, tokens, weights) in enumerate(self.predictions(batch), start=1):
            total = total + self._decay**k * (F.cross_entropy(logits, tokens, reduction="none") * weights).sum()
        return total

    def predictions(self, batch: HiddenStateBatch, whole: bool = False) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each head: logits (positions, tokens of the loss), places of the targets among them, and weights; with
        `whole` over the vocabulary, as served.
        """
        heads, places = (self.whole_heads(), None) if whole else (self.trained_module, self._places)
        hidden = self._norm[0](batch.deep)
        found = []
        for k, head in enumerate(heads.children(), start=1):
            tokens = batch.tokens[:, 1 + k :]
            weights = batch.loss_weights[:, : tokens.shape[1]]
            used = (weights > 0) & (tokens >= 0)
            targets = tokens[used] if places is None else places.to(tokens.device)[tokens[used]]
            found.append((head(hidden[:, : tokens.shape[1]][used]), targets, weights[used]))
        return found

    @torch.no_grad()
    def rank_accuracies(self, trace: HiddenStateTrace, texts: Sequence[int]) -> list[list[float]]:
        """For each head and rank the share of right predictions, over the answers of these texts."""
        found = []
        for logits, tokens, weights in self.predictions(collate(trace, texts, 0.0), whole=True):
            right = (logits.topk(MAX_RANKS, -1).indices == tokens[:, None]) * weights[:, None]
            found.append((right.sum(0) / weights.sum().clamp_min(1e-9)).tolist())
        return found

    @torch.no_grad()
    def top1_agreement(self, batch: HiddenStateBatch) -> list[float]:
        return [
            float(((logits.argmax(-1) == tokens) * weights).sum() / weights.sum().clamp_min(1e-9))
            for logits, tokens, weights in self.predictions(batch, whole=True)
        ]


def _medusa_heads(heads: nn.Module) -> list[MedusaHead]:
    return [head for head in heads.children() if isinstance(head, MedusaHead)]
