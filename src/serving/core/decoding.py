"""How both models choose tokens."""

from dataclasses import dataclass, field

from serving.messages import SamplingParams

MIN_TEMPERATURE = 1e-6
"""A client's lower temperature is greedy decoding: logits divided by 1e-40 exceed fp32."""


@dataclass(frozen=True)
class Decoding:
    """Greedy at temperature 0; else sampled from the `top_k` likeliest tokens (0: all) within `top_p`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    exact: bool = field(default=False, metadata={"omitted_at_default": True})
    """True: what the cloud's model computes for a token does not depend on the tokens that are computed with it, so
    that a lossless policy writes its text in every number format. It takes longer here; the clock charges no more.
    """
    packed_weights: bool = field(default=True, metadata={"omitted_at_default": True})
    """True: models that serve have their layers fused, and on a CPU their weights packed once, unless processes share
    them; a verification takes half of the time there. False: they round as torch's own layers do.
    """
    cuda_graphs: bool = field(default=True, metadata={"omitted_at_default": True})
    """True: on a GPU, passes of few tokens are replayed as CUDA graphs, from the second of a shape on; they round
    otherwise. False: each kernel is launched by itself.
    """

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or self.temperature >= MIN_TEMPERATURE):
            raise ValueError(
                f"decoding.temperature is {self.temperature}; it is 0 (greedy), or {MIN_TEMPERATURE:g} or more"
            )
        if self.top_k < 0:
            raise ValueError(f"decoding.top_k is {self.top_k}; it is 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"decoding.top_p is {self.top_p}; it is a share: more than 0, up to 1 (all tokens)")

    def sampling(self, seed: int) -> SamplingParams | None:
        return SamplingParams(self.temperature, self.top_k, self.top_p, seed) if self.temperature else None
