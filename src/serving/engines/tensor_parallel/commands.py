"""What the process that leads tells those that follow: what happened to its caches, and what to run.

One process's place among those that share a model.

Into how many shares a model's blocks can be parted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from serving.messages import Span


@dataclass(frozen=True, slots=True)
class OpenCache:
    """`Cache.open`, of a slot that has `cached_len` tokens until then."""

    cache_id: int
    session: str
    start_layer: int | None
    end_layer: int
    cached_len: int
    start: int
    kept_tree_nodes: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class FreeCache:
    """`Cache.drop`."""

    cache_id: int
    session: str
    start_layer: int | None


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A `RunnerInput`, and how its slot stands; who follows has that slot, too."""

    session: str
    start_layer: int | None
    cached_len: int
    draft_start: int
    num_tokens: int
    parents: tuple[int, ...] | None
    num_cached: int | None


@dataclass(frozen=True, slots=True)
class RunLayers:
    """Layers first..last-1 over the rows of all shares, whose hidden states are broadcast next."""

    cache_id: int
    start_layer: int
    end_layer: int
    inputs: tuple[InputSpec, ...]


TPCommand: TypeAlias = OpenCache | FreeCache | RunLayers


SYNC_TIMEOUT_S = 60.0
"""How long processes wait for one another in the middle of work."""


@dataclass(frozen=True)
class RankConfig:
    """What a process is told; rank 0 leads.

    It holds the layers of a `span`, None: all of them; embedding and head are the leader's alone.
    """

    rank: int
    world_size: int
    path: str
    dtype: str
    accelerator: str
    rendezvous_file: str
    """A file, in a folder of this user's alone, in which they find each other."""
    span: Span | None = None
    timeout_s: float = SYNC_TIMEOUT_S

    @property
    def device_type(self) -> str:
        """Of accelerator: "cpu", "cuda"."""
        return self.accelerator.partition(":")[0]

    @property
    def device(self) -> str:
        """The torch device; of GPUs each process has its own."""
        return self.device_type if self.device_type == "cpu" else f"{self.device_type}:{self.rank}"


def check_divisible_heads(world_size: int, config: Mapping[str, Any], name: str) -> None:
    """Raises ValueError for a checkpoint's `config` whose heads, or KV heads, are not a multiple of `world_size`.

    Attention is parted by whole heads; a head that two processes had halves of would be wrong.
    """
    heads = config.get("num_attention_heads")
    counts = {"heads": heads, "KV heads": config.get("num_key_value_heads") or heads}
    for what, count in counts.items():
        if isinstance(count, int) and count % world_size:
            allowed = ", ".join(str(n) for n in range(1, count + 1) if not count % n)
            raise ValueError(
                f"model.cloud.tensor_parallel is {world_size}, and {name} has {count} {what}, which cannot be shared out evenly; set it "
                f"to a divisor of that: {allowed}"
            )
