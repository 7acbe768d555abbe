"""How a dispatcher learns, as configuration says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Raises ValueError for a value out of range."""

    hidden: int = 16
    """Of a vertex's state."""
    steps: int = 64
    """At most; each plays `episodes` new ones."""
    episodes: int = 4
    plays: int = 4
    """Of each episode: they are each other's baseline."""
    rate: float = 0.01
    """Adam's, which falls along a line to a twentieth."""
    discount: float = 0.8
    """Of what a task's choices mean for the next task."""
    entropy: float = 0.01
    """Weight of the choices' entropy in the loss, which falls along a line to nothing."""
    keep: float = 0.95
    """What is served is a moving average of the weights: how much of it a step leaves as it was."""
    check_every: int = 16
    """Steps between two looks at the held-out episodes."""
    held_out: int = 32
    """Episodes by which the best weights are found."""
    tested: int = 48
    """Further episodes, by which these are judged."""

    def __post_init__(self) -> None:
        for name, least in (
            ("hidden", 1), ("steps", 1), ("episodes", 1), ("plays", 2), ("check_every", 1), ("held_out", 1),
            ("tested", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"recipe.{name} must be {least} or more, got {getattr(self, name)}")
        for name in ("discount", "keep"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be 0 or more and below 1, got {getattr(self, name)}")
        if self.rate <= 0 or self.entropy < 0:
            raise ValueError(f"recipe.rate must be above 0 and recipe.entropy 0 or more, got {self.rate} and "
                             f"{self.entropy}")  # fmt: skip

    def left(self, step: int) -> float:
        """The share of the steps that is left, in a step counted from 0."""
        return 1 - step / self.steps

    def rate_factor(self, step: int) -> float:
        """Of `rate`, in a step counted from 0."""
        return max(0.05, self.left(step))
