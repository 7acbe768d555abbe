"""Lengths of prompts that a paper states by a few figures."""

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist


@dataclass(frozen=True)
class Lengths:
    """Log-normal, by mean and standard deviation in tokens: of the figures of HAT's Table 3 the P90 follows.

    Raises ValueError for a mean or deviation that is not above 0.
    """

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        for name in ("mean", "deviation"):
            if not getattr(self, name) > 0:
                raise ValueError(f"prompts.{name} is {getattr(self, name)}; it is a number of tokens above 0")

    def drawn(self, luck: float) -> int:
        """The length below which the share `luck`, of [0, 1), of all prompts lie; at least one token."""
        spread = log(1 + (self.deviation / self.mean) ** 2)
        middle = log(self.mean) - spread / 2
        return max(1, round(exp(middle + sqrt(spread) * NormalDist().inv_cdf(min(max(luck, 1e-9), 1 - 1e-9)))))
