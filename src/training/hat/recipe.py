"""How long, how fast and on what an adapter or heads are trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, pi

EPOCHS = 40


@dataclass(frozen=True)
class Recipe:
    """Raises ValueError for a value out of range."""

    steps: int = 2000
    """At most."""
    batch: int = 32
    """Texts a step."""
    rate: float = 4e-3
    """AdamW's, after `warmup_steps`; it ends at a twentieth of that, along a cosine."""
    warmup_steps: int = 30
    weight_decay: float = 0.01
    prompt_weight: float = 0.2
    """What a prompt's position counts, where an answer's counts 1."""
    check_every: int = 200
    """Steps between two looks at the held-out loss."""
    patience: int = 4
    """Looks without a lower one, after which training stops."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "check_every", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("warmup_steps", "weight_decay", "prompt_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"recipe.{name} must be 0 or more, got {getattr(self, name)}")
        if self.rate <= 0:
            raise ValueError(f"recipe.rate must be above 0, got {self.rate}")

    def bounded(self, texts: int) -> Recipe:
        """The same with so few steps that none of so many texts is learned from oftener than `EPOCHS` times."""
        return replace(self, steps=min(self.steps, EPOCHS * max(1, texts // min(self.batch, texts))))

    def rate_factor(self, step: int) -> float:
        """Of `rate`, in a step counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return 0.05 + 0.95 * (1 + cos(pi * min(1.0, share))) / 2
