"""Dispatchers made by hand: by luck, or by a rule."""

import numpy as np

from serving.learned.dispatch_network import NODE_FEATURES, DispatchNetwork, layer_shapes


def made(seed: int, hidden: int = 4) -> DispatchNetwork:
    draw = np.random.default_rng(seed)
    return DispatchNetwork({
        name: (draw.normal(size=size).astype(np.float32), draw.normal(size=size[:1]).astype(np.float32))
        for name, size in layer_shapes(hidden).items()
    })  # fmt: skip


def soonest(sign: float = -1.0) -> DispatchNetwork:
    """Scores fall with the completion time, and nothing else counts."""
    layers = {
        name: (np.zeros(size, np.float32), np.zeros(size[:1], np.float32)) for name, size in layer_shapes(1).items()
    }  # fmt: skip
    layers["score"][0][0, 1 + NODE_FEATURES.index("completion")] = sign
    return DispatchNetwork(layers)
