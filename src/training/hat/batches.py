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

from training.hat.trace import Trace


@dataclass(frozen=True)
class Batch:
    """`b` texts, padded at their ends to `n` tokens."""

    shallow: Tensor
    """(b, n, hidden)"""
    deep: Tensor
    """(b, n, hidden)"""
    tokens: Tensor
    """(b, n); -1: padding."""
    weights: Tensor
    """(b, n): what each position counts, 1 in all; 0 where no token follows. Position i is that which predicts token
    i + 1.
    """

    def to(self, device: torch.device) -> Batch:
        return Batch(*(each.to(device) for each in (self.shallow, self.deep, self.tokens, self.weights)))

    def share(self, rank: int, of: int) -> Batch:
        """Every `of`-th text. The mean over all shares of a weighted sum is that of the whole batch."""
        mine = slice(rank, None, of)
        return Batch(self.shallow[mine], self.deep[mine], self.tokens[mine], self.weights[mine] * of)


def gather(trace: Trace, texts: Sequence[int], prompt_weight: float) -> Batch:
    """These texts; a position that predicts an answer's token counts 1, another one `prompt_weight`."""
    spans = [trace.span(text) for text in texts]
    shape = (len(texts), max(end - begin for begin, end in spans))
    width = trace.deep.shape[1]
    shallow, deep = torch.zeros(*shape, width), torch.zeros(*shape, width)
    tokens, weights = torch.full(shape, -1), torch.zeros(shape)
    for row, (text, (begin, end)) in enumerate(zip(texts, spans, strict=True)):
        n, prompt = end - begin, int(trace.prompts[text])
        shallow[row, :n], deep[row, :n] = trace.shallow[begin:end].float(), trace.deep[begin:end].float()
        tokens[row, :n] = trace.tokens[begin:end].long()
        weights[row, : prompt - 1] = prompt_weight
        weights[row, prompt - 1 : n - 1] = 1.0
    return Batch(shallow, deep, tokens, weights / weights.sum().clamp_min(1e-9))


class Batches:
    """`steps` batches of `rows` texts, every epoch in its own seeded order; can be saved and continued mid-epoch.

    It has a length because Lightning fetches one batch ahead from a loader without, and would lose it on resuming.
    """

    def __init__(
        self, trace: Trace, texts: Sequence[int], rows: int, steps: int, prompt_weight: float, seed: int
    ) -> None:
        self._trace, self._texts, self._rows = trace, texts, min(rows, len(texts))
        self._steps, self._prompt_weight, self._seed = steps, prompt_weight, seed
        self._done = 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        while self._done < self._steps:
            step = self._done
            self._done += 1
            yield gather(self._trace, self._of(step), self._prompt_weight)
        self._done = 0

    def _of(self, step: int) -> list[int]:
        epoch, place = divmod(step, len(self._texts) // self._rows)
        chance = torch.Generator().manual_seed(self._seed * 1009 + epoch)
        order = torch.randperm(len(self._texts), generator=chance)[place * self._rows : (place + 1) * self._rows]
        return [self._texts[i] for i in order.tolist()]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._done = state["done"]


EPOCHS = 40


@dataclass(frozen=True)
class Recipe:
    """Raises ValueError for a value out of range."""

    steps: int = 2000
    """At most."""
    batch: int = 32
    """Texts a step."""
    rate: float = 4e-3
    """AdamW's, after `warmup_steps`; it ends at a twentieth of that, along a cosine."""
    warmup_steps: int = 30
    weight_decay: float = 0.01
    prompt_weight: float = 0.2
    """What a prompt's position counts, where an answer's counts 1."""
    check_every: int = 200
    """Steps between two looks at the held-out loss."""
    patience: int = 4
    """Looks without a lower one, after which training stops."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "check_every", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("warmup_steps", "weight_decay", "prompt_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"recipe.{name} must be 0 or more, got {getattr(self, name)}")
        if self.rate <= 0:
            raise ValueError(f"recipe.rate must be above 0, got {self.rate}")

    def bounded(self, texts: int) -> Recipe:
        """The same with so few steps that none of so many texts is learned from oftener than `EPOCHS` times."""
        return replace(self, steps=min(self.steps, EPOCHS * max(1, texts // min(self.batch, texts))))

    def rate_factor(self, step: int) -> float:
        """Of `rate`, in a step counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return 0.05 + 0.95 * (1 + cos(pi * min(1.0, share))) / 2
