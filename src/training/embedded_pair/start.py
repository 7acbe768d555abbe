"""Where the weights of a model begin; `training.embedded_pair.initialisation` makes them so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Start:
    """Where the weights begin; the defaults copy and nothing more."""

    copying: float = 0.5
    """Scale of the identity that output x value is near to."""
    deeper: float = 1.0
    """Factor on `copying` after the second layer: there it adds every token to every other, which drowns induction."""
    shared: float = 1.0
    """Length of a direction that all embeddings have in common; an embedding itself has length 1."""
    look_back: tuple[int, ...] = ()
    """How many tokens back head i of the first layer begins by looking; heads not named look nowhere."""
    sharpness: float = 3.0
    """How much higher the score of that token begins than those of its neighbours."""
    induction: float = 0.0
    """Score that the second layer's heads begin by giving to a token which follows an earlier copy of the present one
    (by as many places as a first-layer head looks back); 0: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "look_back", tuple(self.look_back))
        if min(self.look_back, default=1) < 1:
            raise ValueError(f"start.look_back must be whole numbers of 1 or more, got {list(self.look_back)}")
        if self.look_back and not self.shared:
            raise ValueError("start.look_back needs start.shared above 0: such heads see only what all tokens share")
        if self.induction and not (self.look_back and self.copying):
            raise ValueError("start.induction needs start.look_back and start.copying: it finds what they brought")
        if min(self.copying, self.deeper, self.shared, self.sharpness, self.induction) < 0:
            raise ValueError(f"start's scales must be 0 or more, got {self}")


COPYING = Start()
