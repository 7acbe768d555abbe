"""Dispatch networks, routers and scorers that were not trained: random, or of known weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from serving.core.scores import ThresholdSide
from serving.learned.dispatch_network import NODE_FEATURES, DispatchNetwork, layer_shapes
from serving.learned.mlp import sigmoid
from serving.learned.router import TokenRouter


def random_dispatch_network(seed: int, hidden: int = 4) -> DispatchNetwork:
    draw = np.random.default_rng(seed)
    return DispatchNetwork({
        name: (draw.normal(size=size).astype(np.float32), draw.normal(size=size[:1]).astype(np.float32))
        for name, size in layer_shapes(hidden).items()
    })  # fmt: skip


def earliest_completion_network(sign: float = -1.0) -> DispatchNetwork:
    """Scores fall with the completion time, and nothing else counts."""
    layers = {
        name: (np.zeros(size, np.float32), np.zeros(size[:1], np.float32)) for name, size in layer_shapes(1).items()
    }  # fmt: skip
    layers["score"][0][0, 1 + NODE_FEATURES.index("completion")] = sign
    return DispatchNetwork(layers)


def random_router(
    inputs: int, threshold: float = 0.5, side: ThresholdSide = "below", seed: int = 0, **more: Any
) -> TokenRouter:
    """Scores that spread over 0 to 1 on hidden states of unit variance."""
    draw = np.random.default_rng(seed)
    weight = draw.normal(size=(1, inputs)).astype(np.float32) * np.float32(2 / inputs**0.5)
    zeros, ones = np.zeros(inputs, np.float32), np.ones(inputs, np.float32)
    return TokenRouter(((weight, np.zeros(1, np.float32)),), zeros, ones, threshold=threshold, side=side, **more)


class ConfidenceScorer:
    """The probability is the draft's confidence, or a constant."""

    acceptance = 0.5
    name, feature_kind, num_features = "accept", "scores", 4

    def __init__(self, threshold: float, always: float | None = None) -> None:
        self.threshold, self._always = threshold, always

    def __repr__(self) -> str:
        return f"ConfidenceScorer({self.threshold}, {self._always})"

    @property
    def digest(self) -> str:
        return repr(self)

    def probability(self, features: Sequence[float]) -> float:
        return float(features[0]) if self._always is None else self._always

    def probabilities(self, features: Any) -> Any:
        return features[:, 0] if self._always is None else 0.0 * features[:, 0] + self._always


class LinearScorer:
    """A score that is no `NumpyMLP`, so that it brings what is exported."""

    name, feature_kind, num_features, digest = "doubt", "hidden", 32, "a linear scorer of ones"

    def probability(self, features: Any) -> float:
        return sigmoid(float(np.sum(features)) / 8)

    def probabilities(self, features: Any) -> Any:
        return np.array([self.probability(row) for row in features])

    def logit_module(self) -> Any:
        import torch

        linear = torch.nn.Linear(self.num_features, 1, bias=False)
        linear.weight = torch.nn.Parameter(torch.full((1, self.num_features), 1 / 8), requires_grad=False)
        return torch.nn.Sequential(linear, torch.nn.Flatten(-2))
