"""Batches in a seeded order: loaders that can be continued mid-epoch, and loaders of tensors for whole epochs."""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

BatchT = TypeVar("BatchT")
TensorBatch = tuple[Tensor, ...]


class ResumableLoader(Generic[BatchT]):
    """Base class: `steps` batches, one for each step; can be saved and continued at any step.

    It has a length because Lightning fetches one batch ahead from a loader without one, and would lose it on resuming.
    """

    def __init__(self, steps: int) -> None:
        self._steps, self._next_step = steps, 0

    def batch(self, step: int) -> BatchT:
        """The batch of one step, counted from 0."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[BatchT]:
        while self._next_step < self._steps:
            self._next_step += 1
            yield self.batch(self._next_step - 1)
        self._next_step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next_step": self._next_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next_step = state["next_step"]


def shuffled_indices(step: int, items: int, batch_size: int, seed: int) -> Tensor:
    """Indices of the items in the batch of `step`; every epoch has its own order."""
    epoch, place = divmod(step, items // batch_size)
    return epoch_order(items, seed, epoch)[place * batch_size : (place + 1) * batch_size]


def epoch_order(items: int, seed: int, epoch: int) -> Tensor:
    """The items' indices in the order of one epoch."""
    return torch.randperm(items, generator=torch.Generator().manual_seed(seed * 1009 + epoch))


class TensorLoader:
    """Rows of tensors of equal length in batches of `batch_size`, every epoch in its own seeded order.

    The last rows of an epoch, too few for a batch, are left out. Without a seed one batch has all rows.
    """

    def __init__(self, tensors: TensorBatch, batch_size: int, seed: int | None) -> None:
        self._tensors, self._batch_size, self._seed = tensors, batch_size, seed
        self._epoch = 0

    def __len__(self) -> int:
        return max(1, len(self._tensors[0]) // self._batch_size) if self._seed is not None else 1

    def __iter__(self) -> Iterator[TensorBatch]:
        if self._seed is None:
            yield self._tensors
            return
        order = epoch_order(len(self._tensors[0]), self._seed, self._epoch)
        self._epoch += 1
        for i in range(len(self)):
            rows = order[i * self._batch_size : (i + 1) * self._batch_size]
            yield tuple(tensor[rows] for tensor in self._tensors)


class TensorDataModule(LightningDataModule):
    """Training and validation rows of tensors; its length is the number of steps in `epochs` epochs."""

    def __init__(self, train: TensorBatch, validation: TensorBatch, batch_size: int, epochs: int, seed: int) -> None:
        super().__init__()
        self._train_loader = TensorLoader(train, batch_size, seed)
        self._validation_loader = TensorLoader(validation, batch_size, None)
        self._epochs = epochs

    def __len__(self) -> int:
        return len(self._train_loader) * self._epochs

    def train_dataloader(self) -> TensorLoader:
        return self._train_loader

    def val_dataloader(self) -> TensorLoader:
        return self._validation_loader
