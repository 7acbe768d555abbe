"""Rows of several short documents each, with a mask that keeps them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

OPEN_ROWS = 64
"""Rows that a document is tried on before a new one is begun; more packs tighter and takes longer."""


@dataclass(frozen=True)
class Batch:
    """`ids`, `documents`, `targets`, `weights`: (rows, length). Document 0 is padding; weight 0 is not trained on."""

    ids: Tensor
    documents: Tensor
    targets: Tensor
    weights: Tensor

    def mask(self) -> Tensor:
        """Which token (rows, i) may see which (rows, i, j): earlier ones and itself, of its own document."""
        same = self.documents[:, :, None] == self.documents[:, None, :]
        return same.tril()

    def take(self, rows: Tensor) -> Batch:
        return Batch(self.ids[rows], self.documents[rows], self.targets[rows], self.weights[rows])

    def to(self, device: torch.device) -> Batch:
        return Batch(*(each.to(device) for each in (self.ids, self.documents, self.targets, self.weights)))


def pack(pairs: Sequence[tuple[list[int], list[int]]], length: int, prompt_weight: float) -> Batch:
    """Rows of `length` tokens from (prompt ids, answer ids); answers weigh 1, prompts `prompt_weight`.

    Raises ValueError when a document is longer than a row.
    """
    rows = _assign([len(prompt) + len(answer) for prompt, answer in pairs], length)
    shape = (len(rows), length)
    packed = Batch(*(torch.zeros(shape, dtype=kind) for kind in (torch.long, torch.short, torch.long, torch.float32)))
    for number, members in enumerate(rows):
        _fill(packed, number, [pairs[member] for member in members], prompt_weight)
    return packed


def _assign(lengths: Sequence[int], room: int) -> list[list[int]]:
    """First fit over a window of open rows: which documents share a row."""
    closed: list[list[int]] = []
    opened: list[tuple[list[int], int]] = []
    for document, needed in enumerate(lengths):
        if needed > room:
            raise ValueError(f"a document of {needed} tokens does not fit into a row of {room}; raise row_tokens")
        place = next((i for i, (_, free) in enumerate(opened) if free >= needed), None)
        members, free = opened.pop(place) if place is not None else ([], room)
        opened.append(([*members, document], free - needed))
        if len(opened) > OPEN_ROWS:
            closed.append(opened.pop(0)[0])
    return closed + [members for members, _ in opened]


def _fill(packed: Batch, row: int, members: Iterable[tuple[list[int], list[int]]], prompt_weight: float) -> None:
    begin = 0
    for document, (prompt, answer) in enumerate(members, start=1):
        ids = torch.tensor(prompt + answer)
        end, last = begin + len(ids), begin + len(ids) - 1
        packed.ids[row, begin:end] = ids
        packed.documents[row, begin:end] = document
        packed.targets[row, begin:last] = ids[1:]
        packed.weights[row, begin:last] = prompt_weight
        packed.weights[row, begin + len(prompt) - 1 : last] = 1.0
        begin = end


class BatchLoader:
    """`steps` batches of `rows` rows, every epoch in its own seeded order; can be saved and continued mid-epoch.

    It has a length because Lightning fetches one batch ahead from a loader without, and would lose it on resuming.
    """

    def __init__(self, data: Batch, rows: int, steps: int, seed: int) -> None:
        if len(data.ids) < rows:
            raise ValueError(f"a step takes {rows} rows, the corpus packs into {len(data.ids)}; raise train_items")
        self._data, self._rows, self._steps, self._seed = data, rows, steps, seed
        self._done = 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        while self._done < self._steps:
            step = self._done
            self._done += 1
            yield self._data.take(self._rows_of(step))
        self._done = 0

    def _rows_of(self, step: int) -> Tensor:
        per_epoch = len(self._data.ids) // self._rows
        epoch, place = divmod(step, per_epoch)
        order = torch.randperm(len(self._data.ids), generator=torch.Generator().manual_seed(self._seed * 1009 + epoch))
        return order[place * self._rows : (place + 1) * self._rows]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._done = state["done"]
