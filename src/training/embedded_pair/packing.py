"""Rows of several short documents each, with a mask that keeps them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_OPEN_ROWS = 64
"""Rows that a document is tried on before a new one is begun; more packs tighter and takes longer."""


@dataclass(frozen=True)
class PackedSequences:
    """`input_ids`, `document_ids`, `labels`, `loss_weights`: (rows, length). Document 0 is padding; weight 0 is not
    trained on.
    """

    input_ids: Tensor
    document_ids: Tensor
    labels: Tensor
    loss_weights: Tensor

    def attention_mask(self) -> Tensor:
        """Which token (rows, i) may see which (rows, i, j): earlier ones and itself, of its own document."""
        same = self.document_ids[:, :, None] == self.document_ids[:, None, :]
        return same.tril()

    def select(self, rows: Tensor) -> PackedSequences:
        return PackedSequences(
            self.input_ids[rows], self.document_ids[rows], self.labels[rows], self.loss_weights[rows]
        )

    def to(self, device: torch.device) -> PackedSequences:
        return PackedSequences(
            *(each.to(device) for each in (self.input_ids, self.document_ids, self.labels, self.loss_weights))
        )


def pack(pairs: Sequence[tuple[list[int], list[int]]], row_tokens: int, prompt_loss_weight: float) -> PackedSequences:
    """Rows of `row_tokens` tokens from (prompt ids, answer ids); answers weigh 1, prompts `prompt_loss_weight`.

    Raises ValueError when a document is longer than a row.
    """
    rows = _first_fit([len(prompt) + len(answer) for prompt, answer in pairs], row_tokens)
    shape = (len(rows), row_tokens)
    packed = PackedSequences(
        *(torch.zeros(shape, dtype=kind) for kind in (torch.long, torch.short, torch.long, torch.float32))
    )
    for number, members in enumerate(rows):
        _fill_row(packed, number, [pairs[member] for member in members], prompt_loss_weight)
    return packed


def _first_fit(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """First fit over a window of open rows: which documents share a row."""
    closed: list[list[int]] = []
    opened: list[tuple[list[int], int]] = []
    for document, needed in enumerate(lengths):
        if needed > row_tokens:
            raise ValueError(f"a document of {needed} tokens does not fit into a row of {row_tokens}; raise row_tokens")
        place = next((i for i, (_, free) in enumerate(opened) if free >= needed), None)
        members, free = opened.pop(place) if place is not None else ([], row_tokens)
        opened.append(([*members, document], free - needed))
        if len(opened) > MAX_OPEN_ROWS:
            closed.append(opened.pop(0)[0])
    return closed + [members for members, _ in opened]


def _fill_row(
    packed: PackedSequences, row: int, documents: Iterable[tuple[list[int], list[int]]], prompt_loss_weight: float
) -> None:
    begin = 0
    for document, (prompt, answer) in enumerate(documents, start=1):
        ids = torch.tensor(prompt + answer)
        end, last = begin + len(ids), begin + len(ids) - 1
        packed.input_ids[row, begin:end] = ids
        packed.document_ids[row, begin:end] = document
        packed.labels[row, begin:last] = ids[1:]
        packed.loss_weights[row, begin:last] = prompt_loss_weight
        packed.loss_weights[row, begin + len(prompt) - 1 : last] = 1.0
        begin = end


class PackedLoader:
    """`steps` batches of `rows` rows, every epoch in its own seeded order; can be saved and continued mid-epoch.

    It has a length because Lightning fetches one batch ahead from a loader without, and would lose it on resuming.
    """

    def __init__(self, data: PackedSequences, batch_size: int, steps: int, seed: int) -> None:
        if len(data.input_ids) < batch_size:
            raise ValueError(
                f"a step takes {batch_size} rows, the corpus packs into {len(data.input_ids)}; raise train_items"
            )
        self._data, self._batch_size, self._steps, self._seed = data, batch_size, steps, seed
        self._next_step = 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[PackedSequences]:
        while self._next_step < self._steps:
            step = self._next_step
            self._next_step += 1
            yield self._data.select(self._row_indices(step))
        self._next_step = 0

    def _row_indices(self, step: int) -> Tensor:
        per_epoch = len(self._data.input_ids) // self._batch_size
        epoch, place = divmod(step, per_epoch)
        order = torch.randperm(
            len(self._data.input_ids), generator=torch.Generator().manual_seed(self._seed * 1009 + epoch)
        )
        return order[place * self._batch_size : (place + 1) * self._batch_size]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._next_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next_step = state["done"]
