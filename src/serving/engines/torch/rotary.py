"""Rotary position tables: computed once with the model's own module, then looked up."""

from typing import Any

import torch

_SMALLEST = 256


class Rotary:
    """Cosines and sines per position, of shape (1, positions, rotated size), in the model's dtype.

    A model with `longrope` scaling (Phi-3) has two tables: one for sequences within its original length, one for longer
    ones. A sequence changes sides as a whole, so each session is looked up by the length it has reached.

    Raises ValueError for dynamic scaling, whose table depends on the longest sequence seen so far.
    """

    def __init__(self, module: Any, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        scaling = config.rope_parameters
        if "dynamic" in scaling["rope_type"]:
            raise ValueError(
                f"rope type {scaling['rope_type']!r} changes past positions as a sequence grows, which a KV cache "
                "cannot follow; use a checkpoint with default, linear, yarn, llama3 or longrope scaling"
            )
        self._module, self._dtype, self._device = module, dtype, device
        long = scaling["rope_type"] == "longrope"
        self.original = int(scaling["original_max_position_embeddings"]) if long else None
        """The length up to which the short table holds; None: one table for all lengths."""
        self._tables: dict[bool, tuple[torch.Tensor, torch.Tensor]] = {}

    def is_long(self, length: int) -> bool:
        """Is a sequence of this many tokens on the far side of the original length?"""
        return self.original is not None and length > self.original

    def between(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) of positions first..last-1 of one sequence that reaches `last`, without a copy."""
        cos, sin = self._table(last, self.is_long(last))
        return cos[:, first:last], sin[:, first:last]

    def at(self, positions: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) of any positions below `length`, of sequences on the same side of the original length."""
        cos, sin = self._table(length, self.is_long(length))
        index = torch.tensor(positions, device=self._device)
        return cos.index_select(1, index), sin.index_select(1, index)

    def frequencies(self, long: bool = False) -> tuple[torch.Tensor, float]:
        """Radians a position, of shape (rotated size / 2), and what cosines and sines are multiplied with; `long`: of
        sequences beyond the original length.
        """
        at = torch.full((1, 1), (self.original or 0) if long else 0, device=self._device)
        self._module(torch.empty(0, device=self._device), position_ids=at)  # has it choose
        return self._module.inv_freq.detach().float().clone(), float(self._module.attention_scaling)

    def _table(self, length: int, long: bool) -> tuple[torch.Tensor, torch.Tensor]:
        table = self._tables.get(long)
        if table is None or table[0].shape[1] < length:
            table = self._tables[long] = self._compute(length, long)
        return table

    def _compute(self, length: int, long: bool) -> tuple[torch.Tensor, torch.Tensor]:
        positions = max(_SMALLEST, 2 * length)
        if self.original is not None:
            positions = max(positions, self.original + 1) if long else self.original
        like = torch.empty(0, dtype=self._dtype, device=self._device)
        cos, sin = self._module(like, position_ids=torch.arange(positions, device=self._device)[None])
        return cos, sin
