"""A multi-layer perceptron that tells one of two classes: while it is trained, and as the layers that are served."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from lightning.pytorch import LightningModule
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from serving.learned.artifact import Floats
from serving.learned.mlp import DenseLayer
from training.fitting.batches import TensorBatch
from training.fitting.callbacks import VALIDATION_LOSS


class LabelledSamples(Protocol):
    """`n` rows of features, each with a class."""

    @property
    def features(self) -> NDArray[np.float32]:
        """(n, features)"""
        ...

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """(n,) True for the positive class."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class StandardScaler:
    """Standardises features by the mean and deviation of the training rows."""

    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @classmethod
    def fit(cls, features: NDArray[np.float32]) -> "StandardScaler":
        mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        return cls(mean, np.maximum(features.std(axis=0, dtype=np.float64), 1e-6).astype(np.float32))

    def transform(self, features: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy((features - self.mean) / self.std)


class ClassifierModule(LightningModule):
    """Binary cross-entropy of the logits that `network` gives to rows of standardised features, by Adam.

    `positive_weight` is the weight of the positive class.
    """

    def __init__(
        self, network: nn.Sequential, learning_rate: float, weight_decay: float, positive_weight: float
    ) -> None:
        super().__init__()
        self.network, self._learning_rate, self._weight_decay = network, learning_rate, weight_decay
        self.positive_weight: Tensor
        self.register_buffer("positive_weight", torch.tensor(positive_weight))

    def loss(self, batch: TensorBatch) -> Tensor:
        features, positive = batch
        logits = self.network(features)[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, positive, pos_weight=self.positive_weight)

    def training_step(self, batch: TensorBatch, _: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: TensorBatch, _: int) -> None:
        self.log(VALIDATION_LOSS, self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), lr=self._learning_rate, weight_decay=self._weight_decay)


def build_network(hidden_sizes: Sequence[int], batch_norm: bool, dropout: float, num_features: int) -> nn.Sequential:
    """Linear layers with optional batch norm, ReLU and optional dropout; the output is one logit."""
    parts: list[nn.Module] = []
    width = num_features
    for size in hidden_sizes:
        parts.append(nn.Linear(width, size))
        if batch_norm:
            parts.append(nn.BatchNorm1d(size))
        parts.append(nn.ReLU())
        if dropout:
            parts.append(nn.Dropout(dropout))
        width = size
    return nn.Sequential(*parts, nn.Linear(width, 1))


@torch.no_grad()
def folded_layers(network: nn.Sequential) -> tuple[DenseLayer, ...]:
    """The linear layers, with the running statistics of each batch norm folded into the layer before it."""
    found: list[DenseLayer] = []
    for part in network:
        if isinstance(part, nn.Linear):
            found.append((_array(part.weight), _array(part.bias)))
        elif isinstance(part, nn.BatchNorm1d):
            found[-1] = _fold_batch_norm(*found[-1], part)
    return tuple(found)


def _fold_batch_norm(weight: Floats, bias: Floats, norm: nn.BatchNorm1d) -> DenseLayer:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = _array(norm.weight) / _array(torch.sqrt(norm.running_var + norm.eps))
    return weight * factor[:, None], (bias - _array(norm.running_mean)) * factor + _array(norm.bias)


def _array(tensor: torch.Tensor) -> Floats:
    found: Floats = tensor.detach().cpu().float().numpy().copy()
    return found
