"""How Co-LLM's deferral learns, as configuration says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How the deferral learns. Raises ValueError for a value out of range."""

    rate: float = 1e-2
    """Of the head alone (Adam)."""
    batch: int = 256
    epochs: int = 40
    """At most, of each of the two objectives."""
    patience: int = 5
    joint_rate: float = 2e-4
    """Of the small model and the head together (AdamW)."""
    joint_batch: int = 16
    """Texts."""
    joint_epochs: int = 6

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "patience", "joint_batch", "joint_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("rate", "joint_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"recipe.{name} must be above 0, got {getattr(self, name)}")
