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

TensorBatch = tuple[Tensor, ...]


class LabelledSamples(Protocol):
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


class TensorLoader:
    """Rows of tensors of one length in batches of `rows`, every epoch in its own seeded order; the last rows of an
    epoch wait for another one. Without a seed all of them at once.
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
        chance = torch.Generator().manual_seed(self._seed * 1009 + self._epoch)
        self._epoch += 1
        order = torch.randperm(len(self._tensors[0]), generator=chance)
        for i in range(len(self)):
            rows = order[i * self._batch_size : (i + 1) * self._batch_size]
            yield tuple(tensor[rows] for tensor in self._tensors)


@dataclass(frozen=True, eq=False)
class StandardScaler:
    """What features are standardised by."""

    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @classmethod
    def fit(cls, features: NDArray[np.float32]) -> StandardScaler:
        """Means and deviations of rows of features."""
        mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        return cls(mean, np.maximum(features.std(axis=0, dtype=np.float64), 1e-6).astype(np.float32))

    def transform(self, features: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy((features - self.mean) / self.std)


class TensorDataModule(LightningDataModule):
    """Training and validation rows of tensors; its length is the steps that `epochs` epochs have."""

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


VALIDATION_LOSS = "validation_loss"


class PredictorModule(LightningModule):
    """Rows of standardised scores to the logit of their acceptance; `positive_weight` is that of accepted tokens."""

    def __init__(
        self, network: nn.Sequential, learning_rate: float, weight_decay: float, positive_weight: float
    ) -> None:
        super().__init__()
        self.network, self._learning_rate, self._weight_decay = network, learning_rate, weight_decay
        self.positive_weight: Tensor
        self.register_buffer("positive_weight", torch.tensor(positive_weight))

    def loss(self, batch: TensorBatch) -> Tensor:
        scores, accepted = batch
        logits = self.network(scores)[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, accepted, pos_weight=self.positive_weight)

    def training_step(self, batch: TensorBatch, _: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: TensorBatch, _: int) -> None:
        self.log(VALIDATION_LOSS, self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), lr=self._learning_rate, weight_decay=self._weight_decay)


class EarlyStoppingByEpoch(Callback):
    """Keeps the best epoch's weights by validation loss, and stops after `patience` epochs without a better one."""

    def __init__(self, patience: int, epochs: int, progress: Progress) -> None:
        self.losses: list[float] = []
        self._patience, self._epochs, self._progress = patience, epochs, progress
        self._best_weights: dict[str, Any] = {}

    @property
    def best_epoch(self) -> int:
        """Which one was best, from 1."""
        return 1 + self.losses.index(min(self.losses))

    def on_validation_epoch_end(self, trainer: LightningTrainer, module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.losses.append(float(trainer.callback_metrics[VALIDATION_LOSS]))
        if self.best_epoch == len(self.losses):
            self._best_weights = copy.deepcopy(module.state_dict())
        if len(self.losses) - self.best_epoch >= self._patience:
            trainer.should_stop = True
        note = f"validation loss {self.losses[-1]:.4f}, best {min(self.losses):.4f}"
        self._progress(len(self.losses), self._epochs, note)

    def restore_best(self, module: LightningModule) -> None:
        module.load_state_dict(self._best_weights)
