"""Slot `kv_cache`: which caches are kept between two requests of a session."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.core.kv_accounting import round_up_to_blocks

BLOCK_TOKENS = 16
"""As in vLLM; WISP (section 4.5) gives no size."""


class KvCache(Protocol):
    @property
    def keeps_prefixes(self) -> bool: ...

    @property
    def idle_sessions(self) -> int | None:
        """How many ended sessions leave their caches for later ones to begin with; None: sessions share no prefixes."""
        ...

    @property
    def device_keeps_cache(self) -> bool:
        """True if the draft model's cache is kept after a reply of the cloud."""
        ...

    @property
    def device_idle_sessions(self) -> int:
        """How many ended sessions leave the draft model's caches on their device for later ones to begin with."""
        ...

    @property
    def capacity_tokens(self) -> float | None:
        """The most cached tokens; None: as many as fit into the chip's memory beside the weights."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens of a block; memory is allocated in whole blocks."""
        ...

    def allocated_tokens(self, tokens: int) -> int:
        """Tokens that a session of so many tokens counts against the capacity."""
        ...


@dataclass(frozen=True)
class PrefixCaching:
    """Keeps caches. When memory runs out, idle sessions are evicted, least recently used first (WISP, section 4.5).

    With `device_idle_sessions` a device's draft model begins behind what an ended session has computed, as in the slots
    of llama.cpp's server.
    """

    capacity_tokens: float | None = None
    block_tokens: int = BLOCK_TOKENS
    device_idle_sessions: int = 0
    keeps_prefixes: ClassVar[bool] = True
    idle_sessions: ClassVar[int | None] = None
    device_keeps_cache: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.capacity_tokens is not None and self.capacity_tokens < 1:
            raise ValueError(
                f"policy.kv_cache.capacity_tokens is {self.capacity_tokens}; give at least 1, or null for the chip's"
            )
        if self.block_tokens < 1:
            raise ValueError(f"policy.kv_cache.block_tokens is {self.block_tokens}; give at least 1")
        if self.device_idle_sessions < 0:
            raise ValueError(f"policy.kv_cache.device_idle_sessions is {self.device_idle_sessions}; give 0 or more")

    def allocated_tokens(self, tokens: int) -> int:
        return round_up_to_blocks(tokens, self.block_tokens)


@dataclass(frozen=True)
class SharedPrefixCaching(PrefixCaching):
    """Automatic prefix caching (vLLM; SGLang's RadixAttention): caches of ended sessions stay, and a new session begins
    with a copy of the longest beginning of its prompt that any cache holds.

    `block_tokens` is also the unit of what is shared. A copy takes memory of its own. With `idle_sessions` 0 only
    sessions at the same time share.
    """

    idle_sessions: int = 256  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.idle_sessions < 0:
            raise ValueError(f"policy.kv_cache.idle_sessions is {self.idle_sessions}; give 0 or more")


@dataclass(frozen=True)
class NoPrefixCaching:
    """Every request is computed from the first token (SLED as WISP describes it, section 5.1).

    With `device_keeps_cache` false, the draft model also starts over after each reply (the token router's system,
    section 4.1).
    """

    device_keeps_cache: bool = True

    capacity_tokens: ClassVar[None] = None
    block_tokens: ClassVar[int] = BLOCK_TOKENS
    keeps_prefixes: ClassVar[bool] = False
    idle_sessions: ClassVar[None] = None
    device_idle_sessions: ClassVar[int] = 0

    def allocated_tokens(self, tokens: int) -> int:
        return tokens
