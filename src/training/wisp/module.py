"""How the network learns: binary cross-entropy, Adam, and the best weights kept.

The samples as Lightning sees them: seeded mini-batches of standardised scores.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from serving.progress import Progress

Batch = tuple[Tensor, ...]


class Labelled(Protocol):
    """`n` rows of features, and what is to be told from each."""

    @property
    def features(self) -> NDArray[np.float32]:
        """(n, features)"""
        ...

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """(n,)"""
        ...

    def __len__(self) -> int: ...


class Batches:
    """Rows of tensors of one length in batches of `rows`, every epoch in its own seeded order; the last rows of an
    epoch wait for another one. Without a seed all of them at once.
    """

    def __init__(self, tensors: Batch, rows: int, seed: int | None) -> None:
        self._tensors, self._rows, self._seed = tensors, rows, seed
        self._epoch = 0

    def __len__(self) -> int:
        return max(1, len(self._tensors[0]) // self._rows) if self._seed is not None else 1

    def __iter__(self) -> Iterator[Batch]:
        if self._seed is None:
            yield self._tensors
            return
        chance = torch.Generator().manual_seed(self._seed * 1009 + self._epoch)
        self._epoch += 1
        order = torch.randperm(len(self._tensors[0]), generator=chance)
        for i in range(len(self)):
            rows = order[i * self._rows : (i + 1) * self._rows]
            yield tuple(tensor[rows] for tensor in self._tensors)


@dataclass(frozen=True, eq=False)
class Standard:
    """What features are standardised by."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> Standard:
        """Means and deviations of rows of features."""
        mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        return cls(mean, np.maximum(features.std(axis=0, dtype=np.float64), 1e-6).astype(np.float32))

    def tensor(self, features: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy((features - self.mean) / self.deviation)


class TokenData(LightningDataModule):
    """Training and validation rows of tensors; its length is the steps that `epochs` epochs have."""

    def __init__(self, train: Batch, validation: Batch, rows: int, epochs: int, seed: int) -> None:
        super().__init__()
        self._batches = Batches(train, rows, seed)
        self._validation = Batches(validation, rows, None)
        self._epochs = epochs

    def __len__(self) -> int:
        return len(self._batches) * self._epochs

    def train_dataloader(self) -> Batches:
        return self._batches

    def val_dataloader(self) -> Batches:
        return self._validation


VALIDATION = "validation_loss"


class Study(LightningModule):
    """Rows of standardised scores to the logit of their acceptance; `positive_weight` is that of accepted tokens."""

    def __init__(self, network: nn.Sequential, rate: float, weight_decay: float, positive_weight: float) -> None:
        super().__init__()
        self.network, self._rate, self._weight_decay = network, rate, weight_decay
        self.weight: Tensor
        self.register_buffer("weight", torch.tensor(positive_weight))

    def loss(self, batch: Batch) -> Tensor:
        scores, accepted = batch
        logits = self.network(scores)[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, accepted, pos_weight=self.weight)

    def training_step(self, batch: Batch, _: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Batch, _: int) -> None:
        self.log(VALIDATION, self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), lr=self._rate, weight_decay=self._weight_decay)


class Best(Callback):
    """Keeps the best epoch's weights by validation loss, and stops after `patience` epochs without a better one."""

    def __init__(self, patience: int, epochs: int, progress: Progress) -> None:
        self.losses: list[float] = []
        self._patience, self._epochs, self._progress = patience, epochs, progress
        self._weights: dict[str, Any] = {}

    @property
    def epoch(self) -> int:
        """Which one was best, from 1."""
        return 1 + self.losses.index(min(self.losses))

    def on_validation_epoch_end(self, trainer: LightningTrainer, module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.losses.append(float(trainer.callback_metrics[VALIDATION]))
        if self.epoch == len(self.losses):
            self._weights = copy.deepcopy(module.state_dict())
        if len(self.losses) - self.epoch >= self._patience:
            trainer.should_stop = True
        note = f"validation loss {self.losses[-1]:.4f}, best {min(self.losses):.4f}"
        self._progress(len(self.losses), self._epochs, note)

    def restore(self, module: LightningModule) -> None:
        module.load_state_dict(self._weights)
