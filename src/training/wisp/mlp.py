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

from serving.core.scores import SCORES
from serving.learned.arrays import Floats
from serving.learned.mlp import Layer, Perceptron
from serving.learned.rejection_predictor import Predictor
from serving.progress import Progress, silent
from training.fitting.trainer import ALL_CORES, Trainer
from training.wisp.samples import Samples

if TYPE_CHECKING:
    from training.wisp.module import Labelled

AFRESH = Path("/no/earlier/attempt")
"""Training takes seconds: it is not continued but begun again."""


@dataclass(frozen=True)
class MLP:
    """Hyperparameters, by default the paper's shape. Raises ValueError for one out of range."""

    hidden: tuple[int, ...] = (512, 128, 64)
    batch_norm: bool = False
    dropout: float = 0.1
    rate: float = 1e-3
    """Adam's."""
    weight_decay: float = 0.0
    batch: int = 128
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
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"mlp.hidden is {self.hidden}; give one layer or more, each of 1 or more")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"mlp.dropout is {self.dropout}; it is a share below 1")
        for name, least in (("batch", 2), ("epochs", 1), ("patience", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"mlp.{name} must be {least} or more, got {getattr(self, name)}")
        if self.rate <= 0 or self.weight_decay < 0:
            raise ValueError(f"mlp.rate must be above 0 and mlp.weight_decay 0 or more, got {self.rate} and "
                             f"{self.weight_decay}")  # fmt: skip

    def fit(
        self,
        train: Samples,
        validation: Samples,
        seed: int,
        trainer: Trainer = ALL_CORES,
        progress: Progress = silent,
    ) -> Predictor:
        """The best epoch's weights by validation loss; its threshold is 0.5 until a rule chooses one.

        The same seed gives the same weights on one machine.
        """
        found, metrics = self.learn(train, validation, seed, trainer, progress)
        return Predictor(found.layers, found.mean, found.deviation, threshold=0.5, metrics=metrics)

    def learn(
        self,
        train: Labelled,
        validation: Labelled,
        seed: int,
        trainer: Trainer = ALL_CORES,
        progress: Progress = silent,
    ) -> tuple[Perceptron, dict[str, Any]]:
        """The network, from whatever features there are; and how it came about."""
        import torch

        from training.wisp.module import Best, Standard, Study, TokenData

        trainer = replace(trainer, threads=1)  # more only wait for each other on a network of this size
        standard = Standard.of(train.features)
        learnt, held = (
            (standard.tensor(s.features), torch.from_numpy(s.accepted).float()) for s in (train, validation)
        )
        data = TokenData(learnt, held, min(self.batch, len(train)), self.epochs, seed)
        best = Best(self.patience, self.epochs, progress)
        with torch.random.fork_rng(devices=[]), trainer.using_threads():
            torch.manual_seed(seed)
            network = build(self.hidden, self.batch_norm, self.dropout, train.features.shape[1])
            study = Study(network, self.rate, self.weight_decay, self._weight(train))
            trainer.fit(study, data, [best], saved=AFRESH)
        best.restore(study)
        return Perceptron(layers(network), standard.mean, standard.deviation), self._metrics(best)

    def _weight(self, train: Labelled) -> float:
        accepted = int(train.accepted.sum())
        return 1.0 if self.positive_weight == "none" else (len(train) - accepted) / max(1, accepted)

    def _metrics(self, best: Any) -> dict[str, Any]:
        return {
            "hyperparameters": asdict(self),
            "epochs": len(best.losses),
            "best_epoch": best.epoch,
            "validation_losses": [round(loss, 5) for loss in best.losses],
        }


def build(hidden: Sequence[int], batch_norm: bool, dropout: float, inputs: int = len(SCORES)) -> nn.Sequential:
    """Linear layers with ReLU, batch norm before it and dropout behind it where wanted; one logit comes out."""
    parts: list[nn.Module] = []
    width = inputs
    for size in hidden:
        parts.append(nn.Linear(width, size))
        if batch_norm:
            parts.append(nn.BatchNorm1d(size))
        parts.append(nn.ReLU())
        if dropout:
            parts.append(nn.Dropout(dropout))
        width = size
    return nn.Sequential(*parts, nn.Linear(width, 1))


@torch.no_grad()
def layers(network: nn.Sequential) -> tuple[Layer, ...]:
    """The linear layers, with every batch norm's running statistics folded into the one before it."""
    found: list[Layer] = []
    for part in network:
        if isinstance(part, nn.Linear):
            found.append((_array(part.weight), _array(part.bias)))
        elif isinstance(part, nn.BatchNorm1d):
            found[-1] = _folded(*found[-1], part)
    return tuple(found)


def _folded(weight: Floats, bias: Floats, norm: nn.BatchNorm1d) -> Layer:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = _array(norm.weight) / _array(torch.sqrt(norm.running_var + norm.eps))
    return weight * factor[:, None], (bias - _array(norm.running_mean)) * factor + _array(norm.bias)


def _array(tensor: torch.Tensor) -> Floats:
    found: Floats = tensor.detach().cpu().float().numpy().copy()
    return found
