"""The latency of a forward from a chip's figures and a model's shape: the larger of computing and reading.

Linear layers, attention and LM head are each an operator group: it computes and reads at the same time. It takes
hypot(compute, read), which is the larger of the two except near the ridge, where both are equal and it is 1.41 times
either: with it the kernels of Llama-2-7B on three GPUs at 1 to 4,096 tokens are 2.3 % off (the plain larger: 6.4 %,
the sum: 6.2 %; docs/clock.md). What the process itself takes is added: a constant for each forward that it starts, and
one for each layer that runs, as measured for the software that runs the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import hypot, isfinite

from serving.hardware.latency import ForwardLoad, LinearLatency, batch_load


@dataclass(frozen=True, slots=True)
class TimeFactors:
    """What a roofline's times are multiplied by: `read` also what the process takes."""

    read: float = 1.0
    compute: float = 1.0

    def __post_init__(self) -> None:
        if not all(isfinite(factor) and factor > 0 for factor in (self.read, self.compute)):
            raise ValueError(f"time factors must be finite and above 0, got read={self.read}, compute={self.compute}.")


@dataclass(frozen=True, slots=True)
class RooflineLatency:
    """Seconds of each operator group of a model of `layers` layers, and of the process that starts its forwards.

    Source: Williams, Waterman and Patterson, Roofline, CACM 2009, with a rounded ridge.
    """

    linear_token_s: float
    """Computing the linear layers for one token, all layers."""
    linear_read_s: float
    """Reading the weights of the linear layers, all layers."""
    attention_pair_s: float
    """Computing one (query, key) pair, all layers."""
    attention_read_s: float
    """Reading the keys and values of one cached token, all layers."""
    head_token_s: float
    head_read_s: float
    forward_s: float
    """Per forward that the process starts, however few layers it runs."""
    layer_s: float
    """Per layer that runs."""
    layers: int
    source: str

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"latency from {self.source}: layers={self.layers} must be at least 1.")
        for name in _SECONDS:
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"latency from {self.source}: {name}={value} must be a finite number, 0 or more.")

    def scaled(self, factors: TimeFactors) -> "RooflineLatency":
        """The latency of a chip that is slower by these factors."""
        computing = ("linear_token_s", "attention_pair_s", "head_token_s")
        scaled = {
            name: getattr(self, name) * (factors.compute if name in computing else factors.read) for name in _SECONDS
        }
        return replace(self, **scaled)

    def seconds(self, load: ForwardLoad) -> float:
        """Seconds of a single forward."""
        return self.total_seconds((load,), 1, 1)

    def total_seconds(self, loads: Sequence[ForwardLoad], timed_layers: int, served_layers: int) -> float:
        """Seconds of one work item, whose forwards run without a pause.

        The model has `served_layers` layers and stands for one of `timed_layers`: each layer counts timed / served.
        """
        total_s = 0.0
        for layers, num_tokens, interactions, cached, head_tokens, forwards, _, continued in loads:
            timed = layers * timed_layers / served_layers
            if timed:
                linear_s = hypot(self.linear_token_s * num_tokens, self.linear_read_s * forwards)
                attention_s = hypot(self.attention_pair_s * interactions, self.attention_read_s * cached)
                total_s += timed * ((linear_s + attention_s) / self.layers + self.layer_s * forwards)
            if head_tokens:
                total_s += hypot(self.head_token_s * head_tokens, self.head_read_s * forwards)
            total_s += self.forward_s * (forwards - continued)
        return total_s


_SECONDS = tuple(each.name for each in fields(RooflineLatency) if each.name.endswith("_s"))


_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_NEW_TOKENS = (1, 2, 5, 9, 17)
_CACHED_TOKENS = (64, 256, 1024, 4096)
_PREFILLS = (16, 64, 256, 512, 1024, 2048)


@cache
def linear_fit(latency: RooflineLatency) -> LinearLatency:
    """WISP's Eq. 19 with the coefficients >= 0 that come nearest to the roofline, by relative least squares.

    The shapes are decodes and verifications of 1 to 64 sessions behind 64 to 4,096 cached tokens, and prefills of 16
    to 2,048 tokens: what a server's own profile would run. It is a plane through a bent surface: docs/clock.md has
    its errors.
    """
    import numpy as np
    from scipy.optimize import nnls

    loads = list(_profiled_loads(latency.layers))
    fixed_s = latency.forward_s
    seconds = np.array([latency.seconds(load) - fixed_s for load in loads])
    terms = np.array([_linear_terms(load) for load in loads])
    weights = 1 / np.array([latency.seconds(load) for load in loads])
    found, _ = nnls(terms * weights[:, None], seconds * weights)
    a_s, b_compute_s, b_read_s, c_s, head_token_s, head_c_s = map(float, found)
    return LinearLatency(
        a_s, b_compute_s, b_read_s, c_s, latency.layers, f"Eq. 19 fitted to the {latency.source}", head_token_s,
        head_c_s, forward_s=fixed_s,
    )  # fmt: skip


def _profiled_loads(layers: int) -> Iterator[ForwardLoad]:
    for sessions in _BATCHES:
        for new in _NEW_TOKENS:
            for cached in _CACHED_TOKENS:
                yield batch_load(layers, [(cached, new)] * sessions, sessions * new)
    for prompt in _PREFILLS:
        yield batch_load(layers, [(0, prompt)])
        yield batch_load(layers, [(0, prompt)], 1)


def _linear_terms(load: ForwardLoad) -> tuple[float, ...]:
    return load.num_tokens, load.interactions, load.cached_tokens, 1, load.head_tokens, bool(load.head_tokens)
