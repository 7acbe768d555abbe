"""Slot `kv_cache`: what the cloud keeps between two questions of a session."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

BLOCK_TOKENS = 16
"""As many as vLLM's; WISP (section 4.5) does not say."""


class KvCache(Protocol):
    @property
    def keeps_prefixes(self) -> bool: ...

    @property
    def device_keeps_cache(self) -> bool:
        """Does the device keep its drafter's when the cloud has answered?"""
        ...

    @property
    def capacity_tokens(self) -> float | None:
        """Cached tokens at most; None: what the chip's memory leaves beside the weights."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens of a block: memory is taken in whole ones."""
        ...

    def allocated_tokens(self, tokens: int) -> int:
        """Tokens that the blocks of a session of so many tokens can hold: what counts against the budget."""
        ...


@dataclass(frozen=True)
class PrefixCaching:
    """Prefixes stay cached in blocks of `block_tokens`; idle sessions are evicted, oldest first, when the budget is
    spent (WISP, section 4.5).
    """

    capacity_tokens: float | None = None
    block_tokens: int = BLOCK_TOKENS
    keeps_prefixes: ClassVar[bool] = True
    device_keeps_cache: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.capacity_tokens is not None and self.capacity_tokens < 1:
            raise ValueError(
                f"policy.kv_cache.capacity_tokens is {self.capacity_tokens}; give at least 1, or null for the chip's"
            )
        if self.block_tokens < 1:
            raise ValueError(f"policy.kv_cache.block_tokens is {self.block_tokens}; give at least 1")

    def allocated_tokens(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens) * self.block_tokens


@dataclass(frozen=True)
class NoPrefixCaching:
    """Every question is computed from its first token (SLED as WISP describes it, section 5.1), and with
    `device_keeps_cache` false what the drafter has seen is, too, after each answer of the cloud (the token router's
    system, section 4.1).
    """

    device_keeps_cache: bool = True

    capacity_tokens: ClassVar[None] = None
    block_tokens: ClassVar[int] = BLOCK_TOKENS
    keeps_prefixes: ClassVar[bool] = False

    def allocated_tokens(self, tokens: int) -> int:
        return tokens
