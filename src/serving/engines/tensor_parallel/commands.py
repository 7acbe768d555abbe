"""Commands that rank 0 sends to the other processes of a tensor-parallel model, and the configuration of a rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from serving.messages import Span


@dataclass(frozen=True, slots=True)
class OpenCache:
    """`KVCacheManager.open` for a cache that has `cached_len` tokens before."""

    cache_id: int
    session: str
    start_layer: int | None
    end_layer: int
    cached_len: int
    start: int
    kept_tree_nodes: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class FreeCache:
    """`KVCacheManager.drop`."""

    cache_id: int
    session: str
    start_layer: int | None


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A `RunnerInput` with the state of its cache; every rank has a shard of that cache."""

    session: str
    start_layer: int | None
    cached_len: int
    draft_start: int
    num_tokens: int
    parents: tuple[int, ...] | None
    num_cached: int | None


@dataclass(frozen=True, slots=True)
class RunLayers:
    """Runs layers start_layer..end_layer-1 over all inputs, whose hidden states rank 0 broadcasts next."""

    cache_id: int
    start_layer: int
    end_layer: int
    inputs: tuple[InputSpec, ...]


TPCommand: TypeAlias = OpenCache | FreeCache | RunLayers


SYNC_TIMEOUT_S = 60.0
"""How long processes wait for one another during work."""


@dataclass(frozen=True)
class RankConfig:
    """The configuration of one process. Rank 0 is the node's own process.

    A rank holds its shard of the layers of `span` (None: all); only rank 0 has the embedding and the head.
    """

    rank: int
    world_size: int
    path: str
    dtype: str
    accelerator: str
    rendezvous_file: str
    """The file, in a private folder, through which the processes find each other."""
    span: Span | None = None
    timeout_s: float = SYNC_TIMEOUT_S

    @property
    def device_type(self) -> str:
        """ "cpu" or "cuda"."""
        return self.accelerator.partition(":")[0]

    @property
    def device(self) -> str:
        """The torch device; each process has its own GPU."""
        return self.device_type if self.device_type == "cpu" else f"{self.device_type}:{self.rank}"


def check_divisible_heads(world_size: int, config: Mapping[str, Any], name: str) -> None:
    """Raises ValueError for a checkpoint's `config` whose heads, or KV heads, are not a multiple of `world_size`.

    Attention is sharded by whole heads.
    """
    heads = config.get("num_attention_heads")
    counts = {"heads": heads, "KV heads": config.get("num_key_value_heads") or heads}
    for what, count in counts.items():
        if isinstance(count, int) and count % world_size:
            allowed = ", ".join(str(n) for n in range(1, count + 1) if not count % n)
            raise ValueError(
                f"model.cloud.tensor_parallel is {world_size}, and {name} has {count} {what}, which cannot be shared "
                f"out evenly; set it to a divisor of that: {allowed}"
            )
