"""Packs several short documents into each row, with a mask that keeps them apart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.fitting.batches import ResumableLoader, shuffled_indices

MAX_OPEN_ROWS = 64
"""Open rows that a document is tried on before a new row is opened; more packs tighter and takes longer."""


@dataclass(frozen=True)
class PackedSequences:
    """`input_ids`, `document_ids`, `labels`, `loss_weights`: (rows, length). Document 0 is padding; positions of weight
    0 are not trained on.
    """

    input_ids: Tensor
    document_ids: Tensor
    labels: Tensor
    loss_weights: Tensor

    def attention_mask(self) -> Tensor:
        """(rows, i, j): True if token i sees token j, which is itself or an earlier token of the same document."""
        same = self.document_ids[:, :, None] == self.document_ids[:, None, :]
        return same.tril()

    def select(self, rows: Tensor) -> "PackedSequences":
        return PackedSequences(
            self.input_ids[rows], self.document_ids[rows], self.labels[rows], self.loss_weights[rows]
        )

    def to(self, device: torch.device) -> "PackedSequences":
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
    """Indices of the documents of each row, by first fit over a window of open rows."""
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


class PackedLoader(ResumableLoader[PackedSequences]):
    """Batches of `batch_size` rows, every epoch in its own seeded order. Raises ValueError for fewer rows."""

    def __init__(self, data: PackedSequences, batch_size: int, steps: int, seed: int) -> None:
        super().__init__(steps)
        if len(data.input_ids) < batch_size:
            raise ValueError(
                f"a step takes {batch_size} rows, the corpus packs into {len(data.input_ids)}; raise train_items"
            )
        self._data, self._batch_size, self._seed = data, batch_size, seed

    def batch(self, step: int) -> PackedSequences:
        return self._data.select(shuffled_indices(step, len(self._data.input_ids), self._batch_size, self._seed))
