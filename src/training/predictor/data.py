"""The samples as Lightning sees them: seeded mini-batches of standardised scores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from training.predictor.samples import Samples

Batch = tuple[Tensor, Tensor]


class Batches:
    """(scores, accepted) in batches of `rows`, every epoch in its own seeded order; the last rows of an epoch wait for
    another one.
    """

    def __init__(self, scores: Tensor, accepted: Tensor, rows: int, seed: int | None) -> None:
        self._scores, self._accepted, self._rows, self._seed = scores, accepted, rows, seed
        self._epoch = 0

    def __len__(self) -> int:
        return max(1, len(self._scores) // self._rows) if self._seed is not None else 1

    def __iter__(self) -> Iterator[Batch]:
        if self._seed is None:
            yield self._scores, self._accepted
            return
        chance = torch.Generator().manual_seed(self._seed * 1009 + self._epoch)
        self._epoch += 1
        order = torch.randperm(len(self._scores), generator=chance)
        for i in range(len(self)):
            rows = order[i * self._rows : (i + 1) * self._rows]
            yield self._scores[rows], self._accepted[rows]


class TokenData(LightningDataModule):
    """Training and validation samples, standardised by the training part's means and deviations.

    Its length is the steps that `epochs` epochs have.
    """

    def __init__(self, train: Samples, validation: Samples, rows: int, epochs: int, seed: int) -> None:
        super().__init__()
        self.mean = train.features.mean(axis=0, dtype=np.float64).astype(np.float32)
        self.deviation = np.maximum(train.features.std(axis=0, dtype=np.float64), 1e-6).astype(np.float32)
        self._batches = Batches(*self._tensors(train), rows, seed)
        self._validation = Batches(*self._tensors(validation), rows, None)
        self._epochs = epochs

    def _tensors(self, samples: Samples) -> Batch:
        scores = (samples.features - self.mean) / self.deviation
        return torch.from_numpy(scores), torch.from_numpy(samples.accepted.astype(np.float32))

    def __len__(self) -> int:
        return len(self._batches) * self._epochs

    def train_dataloader(self) -> Batches:
        return self._batches

    def val_dataloader(self) -> Batches:
        return self._validation
