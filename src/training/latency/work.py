"""What the engine is given to make a configuration: work that fills the caches, and the work that is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from serving.messages import Forward, Generate
from training.latency.shape import Shape

Tokens: TypeAlias = Callable[[int], tuple[int, ...]]
"""So many tokens that no run had before."""

Work: TypeAlias = Generate | Forward

Works: TypeAlias = Callable[[Shape, str, Tokens], tuple[list[Work], Work]]
"""(shape, name of the run, source of tokens) -> what fills the caches, what is timed."""
