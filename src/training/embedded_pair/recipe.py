"""How long and how fast a model learns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """One training; every field changes what is learnt."""

    steps: int
    rows: int = 16
    """Packed rows a step."""
    row_tokens: int = 128
    rate: float = 1.5e-3
    """Peak learning rate of embeddings and norms (AdamW)."""
    matrix_rate: float = 0.02
    """Peak learning rate of matrices (Muon)."""
    warmup_steps: int = 20
    flat_share: float = 0.4
    """Share of the steps before the rate begins to fall, linearly, to a fiftieth."""
    prompt_weight: float = 0.2
    """Weight of a prompt's token in the loss; an answer's weighs 1."""
    distil_share: float = 0.0
    """Share of the loss that compares with the teacher's distribution, the rest with the corpus's token."""

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "row_tokens", "rate", "matrix_rate", "warmup_steps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"recipe.{name} must be above 0, got {getattr(self, name)}")
        for name in ("flat_share", "prompt_weight", "distil_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"recipe.{name} must be between 0 and 1, got {getattr(self, name)}")

    def rate_factor(self, step: int) -> float:
        """Share of the peak learning rate at `step`: a linear rise, flat, a linear fall."""
        rise = min(1.0, (step + 1) / self.warmup_steps)
        falling = (1 - step / self.steps) / max(1 - self.flat_share, 1e-9)
        return rise * min(1.0, max(0.02, falling))
