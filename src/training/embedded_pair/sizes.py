"""The sizes of a model that the project trains."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Architecture:
    """The sizes of a Llama without grouped queries."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    rope_theta: float = 1000.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"architecture.{name} must be above 0, got {value}")
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"architecture.hidden_size (={self.hidden_size}) must be a multiple of 2 x heads (={self.heads}): "
                "rotary embeddings turn pairs of numbers in every head; change one of the two"
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.heads
