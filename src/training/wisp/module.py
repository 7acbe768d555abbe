"""How the network learns: binary cross-entropy, Adam, and the best weights kept."""

from __future__ import annotations

import copy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from torch import Tensor, nn
from torch.nn import functional

from serving.progress import Progress
from training.wisp.data import Batch

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
