"""The family that is served: WISP's multi-layer perceptron (section 5.4, appendix B).

The network of WISP's predictor while it is trained, and as the layers that are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn

from serving.core.scores import LOGIT_SCORES
from serving.learned.artifact import Floats
from serving.learned.mlp import DenseLayer, NumpyMLP
from serving.learned.rejection_predictor import RejectionPredictor
from serving.progress import Progress, silent
from training.fitting.trainer import CPU_TRAINER, Trainer
from training.wisp.samples import TokenSamples

if TYPE_CHECKING:
    from training.wisp.module import LabelledSamples

NO_CHECKPOINT = Path("/no/earlier/attempt")
"""Training takes seconds: it is not continued but begun again."""


@dataclass(frozen=True)
class MLP:
    """Hyperparameters, by default the paper's shape. Raises ValueError for one out of range."""

    hidden_sizes: tuple[int, ...] = (512, 128, 64)
    batch_norm: bool = False
    dropout: float = 0.1
    learning_rate: float = 1e-3
    """Adam's."""
    weight_decay: float = 0.0
    batch_size: int = 128
    epochs: int = 60
    """At most."""
    patience: int = 8
    """Epochs without a lower validation loss, after which training stops."""
    positive_weight: Literal["none", "balanced"] = "none"
    """none: every token counts alike | balanced: accepted tokens weigh as much as rejected ones in all, so that chances
    are no probabilities any more.
    """
    name: ClassVar[str] = "MLP"

    def __post_init__(self) -> None:
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(f"mlp.hidden_sizes is {self.hidden_sizes}; give one layer or more, each of 1 or more")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"mlp.dropout is {self.dropout}; it is a share below 1")
        for name, least in (("batch_size", 2), ("epochs", 1), ("patience", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"mlp.{name} must be {least} or more, got {getattr(self, name)}")
        if self.learning_rate <= 0 or self.weight_decay < 0:
            raise ValueError(f"mlp.learning_rate must be above 0 and mlp.weight_decay 0 or more, got {self.learning_rate} and "
                             f"{self.weight_decay}")  # fmt: skip

    def fit(
        self,
        train: TokenSamples,
        validation: TokenSamples,
        seed: int,
        trainer: Trainer = CPU_TRAINER,
        progress: Progress = silent,
    ) -> RejectionPredictor:
        """The best epoch's weights by validation loss; its threshold is 0.5 until a rule chooses one.

        The same seed gives the same weights on one machine.
        """
        found, metrics = self.fit_network(train, validation, seed, trainer, progress)
        return RejectionPredictor(found.layers, found.mean, found.std, threshold=0.5, metrics=metrics)

    def fit_network(
        self,
        train: LabelledSamples,
        validation: LabelledSamples,
        seed: int,
        trainer: Trainer = CPU_TRAINER,
        progress: Progress = silent,
    ) -> tuple[NumpyMLP, dict[str, Any]]:
        """The network, from whatever features there are; and how it came about."""
        import torch

        from training.wisp.module import EarlyStoppingByEpoch, PredictorModule, StandardScaler, TensorDataModule

        trainer = replace(trainer, threads=1)  # more only wait for each other on a network of this size
        standard = StandardScaler.fit(train.features)
        learnt, held = (
            (standard.transform(s.features), torch.from_numpy(s.accepted).float()) for s in (train, validation)
        )
        data = TensorDataModule(learnt, held, min(self.batch_size, len(train)), self.epochs, seed)
        best = EarlyStoppingByEpoch(self.patience, self.epochs, progress)
        with torch.random.fork_rng(devices=[]), trainer.using_threads():
            torch.manual_seed(seed)
            network = build_network(self.hidden_sizes, self.batch_norm, self.dropout, train.features.shape[1])
            study = PredictorModule(network, self.learning_rate, self.weight_decay, self._positive_weight(train))
            trainer.fit(study, data, [best], checkpoint=NO_CHECKPOINT)
        best.restore_best(study)
        return NumpyMLP(folded_layers(network), standard.mean, standard.std), self._training_metrics(best)

    def _positive_weight(self, train: LabelledSamples) -> float:
        accepted = int(train.accepted.sum())
        return 1.0 if self.positive_weight == "none" else (len(train) - accepted) / max(1, accepted)

    def _training_metrics(self, best: Any) -> dict[str, Any]:
        return {
            "hyperparameters": asdict(self),
            "epochs": len(best.losses),
            "best_epoch": best.best_epoch,
            "validation_losses": [round(loss, 5) for loss in best.losses],
        }


def build_network(
    hidden_sizes: Sequence[int], batch_norm: bool, dropout: float, num_features: int = len(LOGIT_SCORES)
) -> nn.Sequential:
    """Linear layers with ReLU, batch norm before it and dropout behind it where wanted; one logit comes out."""
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
    """The linear layers, with every batch norm's running statistics folded into the one before it."""
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
