"""Routers of one random linear layer over hidden states."""

from typing import Any

import numpy as np

from serving.core.scores import ThresholdSide
from serving.learned.router import TokenRouter


def made(inputs: int, threshold: float = 0.5, side: ThresholdSide = "below", seed: int = 0, **more: Any) -> TokenRouter:
    """Scores that spread over 0 to 1 on hidden states of unit variance."""
    draw = np.random.default_rng(seed)
    weight = draw.normal(size=(1, inputs)).astype(np.float32) * np.float32(2 / inputs**0.5)
    zeros, ones = np.zeros(inputs, np.float32), np.ones(inputs, np.float32)
    return TokenRouter(((weight, np.zeros(1, np.float32)),), zeros, ones, threshold=threshold, side=side, **more)
