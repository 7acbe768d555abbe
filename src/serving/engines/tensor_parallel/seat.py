"""One process's place among those that share a model."""

from dataclasses import dataclass

from serving.messages import Span

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
