"""A small trained network in numpy: from standardised features to one probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.learned import artifact
from serving.learned.artifact import Floats

BATCH_ROWS = 8192
DenseLayer: TypeAlias = tuple[Floats, Floats]
"""Weights of shape (outputs, inputs) and biases of shape (outputs)."""


@dataclass(frozen=True, eq=False, repr=False)
class NumpyMLP:
    """Linear layers with ReLU between them and a sigmoid at the end.

    Raises ValueError for layers that do not fit each other, and for weights that are not finite.
    """

    layers: tuple[DenseLayer, ...]
    """Layers over standardised features, batch norms folded in. The last has one output."""
    mean: Floats
    """Shape (features,): subtracted from the features."""
    std: Floats
    """Shape (features,): divides the centred features."""

    def __post_init__(self) -> None:
        widths = [self.num_features, *(len(bias) for _, bias in self.layers)]
        if not self.layers or widths[-1] != 1 or {self.mean.shape, self.std.shape} != {(self.num_features,)}:
            raise ValueError(
                f"a network goes from {self.num_features} features to one probability, got layers of {widths[1:]}"
            )
        for (weight, bias), inputs in zip(self.layers, widths[:-1], strict=True):
            if weight.shape != (len(bias), inputs):
                raise ValueError(f"a layer from {inputs} to {len(bias)} has weights of shape {weight.shape}")
        if not all(np.isfinite(each).all() for each in self.arrays().values()) or not (self.std > 0).all():
            raise ValueError("a weight is not finite, or a feature's std is not above 0")

    @property
    def num_features(self) -> int:
        return len(self.mean)

    @property
    def hidden_widths(self) -> str:
        """The widths of the hidden layers as text, for `repr`."""
        return "-".join(str(len(bias)) for _, bias in self.layers[:-1]) or "linear"

    def probability(self, features: Sequence[float] | Floats) -> float:
        """The probability for one row of features."""
        hidden, (weight, bias) = self._folded
        x = np.array(features, np.float32)
        for matrix, offset in hidden:
            x = matrix.dot(x)
            x += offset
            np.maximum(x, 0.0, out=x)
        return sigmoid(float(weight.dot(x)[0]) + float(bias[0]))

    def probabilities(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Probabilities of shape (n,), from features of shape (n, features)."""
        rows = np.asarray(features, np.float32)
        parts = [self._logits(rows[i : i + BATCH_ROWS]) for i in range(0, len(rows), BATCH_ROWS)]
        return np.array([sigmoid(logit) for part in parts for logit in part.tolist()], np.float64)

    def _logits(self, rows: Floats) -> Floats:
        hidden, (weight, bias) = self._folded
        for matrix, offset in hidden:
            rows = np.maximum(rows @ matrix.T + offset, 0.0)
        return (rows @ weight.T + bias)[:, 0]

    @cached_property
    def _folded(self) -> tuple[tuple[DenseLayer, ...], DenseLayer]:
        """The hidden layers and the last one; the standardisation is folded into the first."""
        weight, bias = self.layers[0]
        first: Floats = np.ascontiguousarray(weight / self.std)
        offset: Floats = bias - first @ self.mean
        *hidden, last = ((first, offset), *self.layers[1:])
        return tuple(hidden), last

    @cached_property
    def digest(self) -> str:
        """The digest of everything that the probabilities depend on."""
        return artifact.digest(self.arrays())

    def arrays(self) -> dict[str, Floats]:
        """All weights by name, as they are saved."""
        named = {"mean": self.mean, "std": self.std}
        for i, (weight, bias) in enumerate(self.layers):
            named |= {f"{i}.weight": weight, f"{i}.bias": bias}
        return named


def layers_from(saved: Mapping[str, Floats], count: int) -> tuple[DenseLayer, ...]:
    """The first `count` layers of saved arrays. Raises KeyError when one is missing."""
    return tuple((saved[f"{i}.weight"], saved[f"{i}.bias"]) for i in range(count))


def sigmoid(logit: float) -> float:
    if logit < -36.7:  # a little further the difference below is rounded to 0
        return exp(max(logit, -700.0))
    return 1.0 / (1.0 + exp(-logit)) if logit >= 0 else 1.0 - 1.0 / (1.0 + exp(max(logit, -700.0)))
