"""Keys and values of one session by layer: views of one run of blocks, or of several that lie apart."""

from collections.abc import Sequence
from typing import Protocol

import torch


class Target(Protocol):
    """Where new keys or values of one layer go."""

    def copy_(self, rows: torch.Tensor, /) -> object: ...


class Layers(Protocol):
    """Keys or values by layer: each of shape (1, KV heads, tokens, head size)."""

    def __getitem__(self, layer: int, /) -> torch.Tensor: ...


class Targets(Protocol):
    def __getitem__(self, layer: int, /) -> Target: ...


class Gathered:
    """What lies in several runs of blocks, put together at each look."""

    def __init__(self, runs: Sequence[torch.Tensor]) -> None:
        self._runs = [run.unbind(0) for run in runs]

    def __getitem__(self, layer: int, /) -> torch.Tensor:
        return torch.cat([run[layer] for run in self._runs], 2)


class Spread:
    """New rows that go to several runs of blocks."""

    def __init__(self, runs: Sequence[torch.Tensor]) -> None:
        self._runs = runs

    def __getitem__(self, layer: int, /) -> "Spread":
        return Spread([run[layer] for run in self._runs])

    def copy_(self, rows: torch.Tensor, /) -> None:
        parts = torch.split(rows, [run.shape[-2] for run in self._runs], -2)
        for run, part in zip(self._runs, parts, strict=True):
            run.copy_(part)


def by_layer(run: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Views of the keys and values of a run; its shape: (keys and values, layers, 1, KV heads, tokens, head size)."""
    keys, values = run.unbind(0)
    return keys.unbind(0), values.unbind(0)
