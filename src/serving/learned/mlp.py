"""A small trained network in numpy: standardised features to one chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.learned import arrays
from serving.learned.arrays import Floats

BATCH_ROWS = 8192
DenseLayer: TypeAlias = tuple[Floats, Floats]
"""Weights of shape (outputs, inputs) and biases of shape (outputs)."""


@dataclass(frozen=True, eq=False, repr=False)
class NumpyMLP:
    """Linear layers with ReLU between them, a sigmoid behind.

    Raises ValueError for layers that do not fit each other, and for weights that are not finite.
    """

    layers: tuple[DenseLayer, ...]
    """Of standardised features; batch norms are folded into them. The last has one output."""
    mean: Floats
    """(features,) what is taken from the features, then `std` divides them."""
    std: Floats

    def __post_init__(self) -> None:
        widths = [self.num_features, *(len(bias) for _, bias in self.layers)]
        if not self.layers or widths[-1] != 1 or {self.mean.shape, self.std.shape} != {(self.num_features,)}:
            raise ValueError(
                f"a network goes from {self.num_features} features to one chance, got layers of {widths[1:]}"
            )
        for (weight, bias), inputs in zip(self.layers, widths[:-1], strict=True):
            if weight.shape != (len(bias), inputs):
                raise ValueError(f"a layer from {inputs} to {len(bias)} has weights of shape {weight.shape}")
        if not all(np.isfinite(each).all() for each in self.arrays().values()) or not (self.std > 0).all():
            raise ValueError("a weight is not finite, or a feature's deviation is not above 0")

    @property
    def num_features(self) -> int:
        """How many features it reads."""
        return len(self.mean)

    @property
    def hidden_widths(self) -> str:
        """Of the hidden layers, for a name."""
        return "-".join(str(len(bias)) for _, bias in self.layers[:-1]) or "linear"

    def probability(self, features: Sequence[float] | Floats) -> float:
        """Of one row of features."""
        hidden, (weight, bias) = self._folded
        x = np.array(features, np.float32)
        for matrix, offset in hidden:
            x = matrix.dot(x)
            x += offset
            np.maximum(x, 0.0, out=x)
        return sigmoid(float(weight.dot(x)[0]) + float(bias[0]))

    def probabilities(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Of n rows, from features of shape (n, features); shape (n,)."""
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
        """The hidden layers and the last one, with the standardisation inside the first."""
        weight, bias = self.layers[0]
        first: Floats = np.ascontiguousarray(weight / self.std)
        offset: Floats = bias - first @ self.mean
        *hidden, last = ((first, offset), *self.layers[1:])
        return tuple(hidden), last

    @cached_property
    def digest(self) -> str:
        """Of all that the chances depend on."""
        return arrays.digest(self.arrays())

    def arrays(self) -> dict[str, Floats]:
        """Everything by name, as it is saved."""
        named = {"mean": self.mean, "deviation": self.std}
        for i, (weight, bias) in enumerate(self.layers):
            named |= {f"{i}.weight": weight, f"{i}.bias": bias}
        return named


def layers_from(saved: Mapping[str, Floats], count: int) -> tuple[DenseLayer, ...]:
    """The layers among saved arrays. Raises KeyError where one is missing."""
    return tuple((saved[f"{i}.weight"], saved[f"{i}.bias"]) for i in range(count))


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + exp(-logit)) if logit >= 0 else 1.0 - 1.0 / (1.0 + exp(max(logit, -700.0)))
