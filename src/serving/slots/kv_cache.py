"""Slot `kv_cache`: what the cloud keeps between two questions of a session."""

from dataclasses import dataclass
from typing import ClassVar, Protocol


class KvCache(Protocol):
    @property
    def keep(self) -> bool: ...

    @property
    def capacity_tokens(self) -> float | None:
        """Cached tokens at most; None: what the chip's memory leaves beside the weights."""
        ...


@dataclass(frozen=True)
class Reuse:
    """Prefixes stay cached; idle sessions are evicted, oldest first, when the budget is spent."""

    capacity_tokens: float | None = None
    keep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.capacity_tokens is not None and self.capacity_tokens < 1:
            raise ValueError(
                f"policy.kv_cache.capacity_tokens is {self.capacity_tokens}; give at least 1, or null for the chip's"
            )


@dataclass(frozen=True)
class NoReuse:
    """Every question is computed from its first token (SLED as WISP describes it, section 5.1)."""

    capacity_tokens: ClassVar[None] = None
    keep: ClassVar[bool] = False
