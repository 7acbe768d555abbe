"""Decoding of many rows, each at a position of its own, with a Llama-like model of `transformers`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class _Places:
    """Where the next forward writes. Layers hold this, not their cache: a cycle would keep it until a collection."""

    capacity: int
    rows: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))
    """(rows, new tokens): positions of what the forward reads."""
    length: int = 0
    """Positions that the longest row has after it."""


class _RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer: each row writes at its own positions."""

    def __init__(self, places: _Places) -> None:
        super().__init__()
        self._places = places

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, heads, _, dim = key_states.shape
        self.keys = key_states.new_zeros(rows, heads, self._places.capacity, dim)
        self.values = value_states.new_zeros(rows, heads, self._places.capacity, dim)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        places, length = self._places.rows, self._places.length
        rows = torch.arange(len(places), device=places.device)[:, None]
        self.keys[rows, :, places] = key_states.transpose(1, 2)
        self.values[rows, :, places] = value_states.transpose(1, 2)
        return self.keys[:, :, :length], self.values[:, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - the mask is given whole
        return self._places.length, 0

    def get_seq_length(self) -> int:
        return self._places.length

    def get_max_length(self) -> int:
        return self._places.capacity


class RowDecoder:
    """Rows that share the tokens of `prefix`; each reads one token a step, and begins again behind the prefix.

    Every row holds up to `capacity` tokens.
    """

    def __init__(self, model: Any, prefix: Sequence[int], rows: int, capacity: int) -> None:
        self._model, self._prefix = model, list(prefix)
        self._places = _Places(capacity)
        self._cache = Cache(layers=[_RowLayer(self._places) for _ in range(model.config.num_hidden_layers)])
        device = model.device
        self._next = torch.full((rows,), self._prefix[-1], device=device)
        self._positions = torch.full((rows,), len(self._prefix) - 1, device=device)
        if len(self._prefix) > 1:
            begun = torch.tensor(self._prefix[:-1], device=device).expand(rows, -1)
            self._forward(begun, torch.arange(begun.shape[1], device=device).expand(rows, -1))

    def logits(self) -> Tensor:
        """(rows, vocabulary), fp32, on the CPU, of the token that each row reads last; rows then wait for `push`."""
        hidden = self._forward(self._next[:, None], self._positions[:, None])
        found: Tensor = self._model.lm_head(hidden[:, -1])
        return found.float().cpu()

    def push(self, row: int, token: int) -> None:
        """The token that the row reads next."""
        self._next[row] = token
        self._positions[row] += 1

    def restart(self, row: int) -> None:
        """The row begins again behind the prefix."""
        self._next[row] = self._prefix[-1]
        self._positions[row] = len(self._prefix) - 1

    def _forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """(rows, new tokens, hidden)"""
        self._places.rows, self._places.length = places, int(places.max()) + 1
        mask = (torch.arange(self._places.length, device=places.device) <= places[..., None])[:, None]
        found: Tensor = self._model.model(
            input_ids=tokens, position_ids=places, attention_mask=mask, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        return found
