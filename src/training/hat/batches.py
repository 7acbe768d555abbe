"""Whole texts of a trace in padded batches, in a seeded order that can be continued.

How long, how fast and on what an adapter or heads are trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import cos, pi
from typing import Any

import torch
from torch import Tensor

from training.hat.trace import HiddenStateTrace


@dataclass(frozen=True)
class HiddenStateBatch:
    """`b` texts, padded at their ends to `n` tokens."""

    shallow: Tensor
    """(b, n, hidden)"""
    deep: Tensor
    """(b, n, hidden)"""
    tokens: Tensor
    """(b, n); -1: padding."""
    loss_weights: Tensor
    """(b, n): what each position counts, 1 in all; 0 where no token follows. Position i is that which predicts token
    i + 1.
    """

    def to(self, device: torch.device) -> HiddenStateBatch:
        return HiddenStateBatch(
            *(each.to(device) for each in (self.shallow, self.deep, self.tokens, self.loss_weights))
        )

    def shard(self, rank: int, world_size: int) -> HiddenStateBatch:
        """Every `world_size`-th text. The mean over all shares of a weighted sum is that of the whole batch."""
        mine = slice(rank, None, world_size)
        return HiddenStateBatch(
            self.shallow[mine], self.deep[mine], self.tokens[mine], self.loss_weights[mine] * world_size
        )


def collate(trace: HiddenStateTrace, texts: Sequence[int], prompt_loss_weight: float) -> HiddenStateBatch:
    """These texts; a position that predicts an answer's token counts 1, another one `prompt_loss_weight`."""
    spans = [trace.span(text) for text in texts]
    shape = (len(texts), max(end - begin for begin, end in spans))
    width = trace.deep.shape[1]
    shallow, deep = torch.zeros(*shape, width), torch.zeros(*shape, width)
    tokens, weights = torch.full(shape, -1), torch.zeros(shape)
    for row, (text, (begin, end)) in enumerate(zip(texts, spans, strict=True)):
        n, prompt = end - begin, int(trace.prompt_lens[text])
        shallow[row, :n], deep[row, :n] = trace.shallow[begin:end].float(), trace.deep[begin:end].float()
        tokens[row, :n] = trace.tokens[begin:end].long()
        weights[row, : prompt - 1] = prompt_loss_weight
        weights[row, prompt - 1 : n - 1] = 1.0
    return HiddenStateBatch(shallow, deep, tokens, weights / weights.sum().clamp_min(1e-9))


class HiddenStateLoader:
    """`steps` batches of `rows` texts, every epoch in its own seeded order; can be saved and continued mid-epoch.

    It has a length because Lightning fetches one batch ahead from a loader without, and would lose it on resuming.
    """

    def __init__(
        self,
        trace: HiddenStateTrace,
        texts: Sequence[int],
        batch_size: int,
        steps: int,
        prompt_loss_weight: float,
        seed: int,
    ) -> None:
        self._trace, self._texts, self._batch_size = trace, texts, min(batch_size, len(texts))
        self._steps, self._prompt_loss_weight, self._seed = steps, prompt_loss_weight, seed
        self._next_step = 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[HiddenStateBatch]:
        while self._next_step < self._steps:
            step = self._next_step
            self._next_step += 1
            yield collate(self._trace, self._batch_texts(step), self._prompt_loss_weight)
        self._next_step = 0

    def _batch_texts(self, step: int) -> list[int]:
        epoch, place = divmod(step, len(self._texts) // self._batch_size)
        chance = torch.Generator().manual_seed(self._seed * 1009 + epoch)
        order = torch.randperm(len(self._texts), generator=chance)[
            place * self._batch_size : (place + 1) * self._batch_size
        ]
        return [self._texts[i] for i in order.tolist()]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._next_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next_step = state["done"]


MAX_EPOCHS = 40


@dataclass(frozen=True)
class HATRecipe:
    """Raises ValueError for a value out of range."""

    steps: int = 2000
    """At most."""
    batch_size: int = 32
    """Texts a step."""
    learning_rate: float = 4e-3
    """AdamW's, after `warmup_steps`; it ends at a twentieth of that, along a cosine."""
    warmup_steps: int = 30
    weight_decay: float = 0.01
    prompt_loss_weight: float = 0.2
    """What a prompt's position counts, where an answer's counts 1."""
    eval_steps: int = 200
    """Steps between two looks at the held-out loss."""
    patience: int = 4
    """Looks without a lower one, after which training stops."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_steps", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("warmup_steps", "weight_decay", "prompt_loss_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"recipe.{name} must be 0 or more, got {getattr(self, name)}")
        if self.learning_rate <= 0:
            raise ValueError(f"recipe.learning_rate must be above 0, got {self.learning_rate}")

    def limit_epochs(self, texts: int) -> HATRecipe:
        """The same with so few steps that none of so many texts is learned from oftener than `MAX_EPOCHS` times."""
        return replace(self, steps=min(self.steps, MAX_EPOCHS * max(1, texts // min(self.batch_size, texts))))

    def lr_factor(self, step: int) -> float:
        """Of `learning_rate`, in a step counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return 0.05 + 0.95 * (1 + cos(pi * min(1.0, share))) / 2
