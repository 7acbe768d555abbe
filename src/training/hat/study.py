"""How what is trained beside a frozen target learns: AdamW, a warm-up, a cosine."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, distributed, nn
from torch.optim.lr_scheduler import LambdaLR

from training.hat.batches import Batch
from training.hat.recipe import Recipe


class Study(LightningModule):
    """Trains `trained` by `recipe`; the loss is for those who derive from it to say. `frozen` goes where it goes."""

    def __init__(self, trained: nn.Module, frozen: tuple[nn.Module, ...], recipe: Recipe) -> None:
        super().__init__()
        self.trained = trained
        self._recipe = recipe
        # In a tuple, so that the target's weights are neither trained nor saved with the module's.
        self._frozen = frozen

    def on_fit_start(self) -> None:
        for module in self._frozen:
            module.to(self.device)

    def on_fit_end(self) -> None:
        for module in self._frozen:
            module.cpu()

    def loss(self, batch: Batch) -> Tensor:
        """The weighted mean over a batch's positions."""
        raise NotImplementedError

    def agreement(self, batch: Batch) -> list[float]:
        """Shares of the weight at which what is trained guesses the target's token, one a head."""
        raise NotImplementedError

    def training_step(self, batch: Batch, _: int) -> Tensor:
        return self.loss(_own(batch))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        recipe = self._recipe
        optimizer = torch.optim.AdamW(self.trained.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, recipe.rate_factor), "interval": "step"},
        }


def _own(batch: Batch) -> Batch:
    """What this process has of a batch, where several train together."""
    if distributed.is_available() and distributed.is_initialized():
        return batch.share(distributed.get_rank(), distributed.get_world_size())
    return batch
