"""Sizes and initial weights of a model of the embedded pair, as configuration gives them. Loads no torch."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class LlamaSizes:
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
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


@dataclass(frozen=True)
class InitConfig:
    """Initial weights; the defaults only copy. Raises ValueError for values that do not fit together."""

    copy_scale: float = 0.5
    """Scale of the identity that output x value is near to."""
    deep_copy_factor: float = 1.0
    """Factor on `copy_scale` after the second layer: there it adds every token to every other, which drowns induction.
    """
    shared_norm: float = 1.0
    """Length of a direction that all embeddings have in common; an embedding itself has length 1."""
    look_back_offsets: tuple[int, ...] = ()
    """Offset, in tokens back, that head i of the first layer attends to at first; further heads have none."""
    sharpness: float = 3.0
    """Difference of that token's initial score and its neighbours'."""
    induction_score: float = 0.0
    """Initial score that the second layer's heads give to a token that follows an earlier copy of the present one, at
    the offset of a first-layer head; 0: none.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "look_back_offsets", tuple(self.look_back_offsets))
        if min(self.look_back_offsets, default=1) < 1:
            raise ValueError(
                f"init.look_back_offsets must be whole numbers of 1 or more, got {list(self.look_back_offsets)}"
            )
        if self.look_back_offsets and not self.shared_norm:
            raise ValueError(
                "init.look_back_offsets needs init.shared_norm above 0: such heads see only what all tokens share"
            )
        if self.induction_score and not (self.look_back_offsets and self.copy_scale):
            raise ValueError(
                "init.induction_score needs init.look_back_offsets and init.copy_scale: it finds what they brought"
            )
        if min(self.copy_scale, self.deep_copy_factor, self.shared_norm, self.sharpness, self.induction_score) < 0:
            raise ValueError(f"init's scales must be 0 or more, got {self}")


COPYING_INIT = InitConfig()
