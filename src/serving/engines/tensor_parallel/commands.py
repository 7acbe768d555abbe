"""What the process that leads tells those that follow: what happened to its caches, and what to run.

One process's place among those that share a model.

Into how many shares a model's blocks can be parted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from serving.messages import Span


@dataclass(frozen=True, slots=True)
class Open:
    """`Cache.open`, of a slot that has `length` tokens until then."""

    cache: int
    session: str
    part: int | None
    last: int
    length: int
    start: int
    keep: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Drop:
    """`Cache.drop`."""

    cache: int
    session: str
    part: int | None


@dataclass(frozen=True, slots=True)
class Share:
    """A `Lot`, and how its slot stands; who follows has that slot, too."""

    session: str
    part: int | None
    length: int
    drafts_at: int
    n: int
    parents: tuple[int, ...] | None
    past: int | None


@dataclass(frozen=True, slots=True)
class Pass:
    """Layers first..last-1 over the rows of all shares, whose hidden states are broadcast next."""

    cache: int
    first: int
    last: int
    shares: tuple[Share, ...]


Order: TypeAlias = Open | Drop | Pass


PATIENCE_S = 60.0
"""How long processes wait for one another in the middle of work."""


@dataclass(frozen=True)
class Seat:
    """What a process is told; rank 0 leads.

    It holds the layers of a `span`, None: all of them; embedding and head are the leader's alone.
    """

    rank: int
    ways: int
    path: str
    dtype: str
    accelerator: str
    meeting: str
    """A file, in a folder of this user's alone, in which they find each other."""
    span: Span | None = None
    patience_s: float = PATIENCE_S

    @property
    def kind(self) -> str:
        """Of accelerator: "cpu", "cuda"."""
        return self.accelerator.partition(":")[0]

    @property
    def device(self) -> str:
        """The torch device; of GPUs each process has its own."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.rank}"


def check_heads(ways: int, config: Mapping[str, Any], name: str) -> None:
    """Raises ValueError for a checkpoint's `config` whose heads, or KV heads, are not a multiple of `ways`.

    Attention is parted by whole heads; a head that two processes had halves of would be wrong.
    """
    heads = config.get("num_attention_heads")
    counts = {"heads": heads, "KV heads": config.get("num_key_value_heads") or heads}
    for what, count in counts.items():
        if isinstance(count, int) and count % ways:
            allowed = ", ".join(str(n) for n in range(1, count + 1) if not count % n)
            raise ValueError(
                f"model.cloud.ways is {ways}, and {name} has {count} {what}, which cannot be shared out evenly; set it "
                f"to a divisor of that: {allowed}"
            )
