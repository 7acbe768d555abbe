"""Fits what software reaches of chips' peaks to published speeds, and predicts a speed from it.

One set of figures holds for one processor with one software. Few groups have many rows, so each figure is drawn to
that of its software over all processors, and those to a common start: a group without rows has its software's figures.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.hardware.chip import SoftwareEfficiency
from training.latency.published_speeds import PublishedSpeed

Array: TypeAlias = NDArray[np.float64]

FIGURES = ("compute", "bandwidth", "quantized_bandwidth", "overhead", "quantized_gbps_per_tflops")
EAGER = frozenset({"transformers"})
"""Software that launches kernels one by one: its overhead is one of layers, not of forwards."""
KERNELS = "kernels"
"""Sums of kernels: no process, so no overhead."""
_START = np.log([0.45, 0.7, 0.6, 3e-3, 3.4])
_EAGER_START_S = 8e-4
_SOFTWARE_SPREAD = np.array([0.5, 0.4, 0.4, 1.5, 0.7])
_GROUP_SPREAD = np.array([0.3, 0.3, 0.3, 0.6, 0.3])
"""Standard deviations of the logarithms: of a software from the start, of a group from its software."""
_OUTLIER = 0.15
"""Relative errors well above it count by their logarithm."""
_PRIOR_WEIGHT = 0.5


@dataclass(frozen=True)
class SpeedTerms:
    """What each row computes and reads over what its chip can at its peak: seconds, one number a row."""

    linear_s: Array
    linear_read_s: Array
    unpack_s: Array
    """Reading the weights at 1 GB/s for each TFLOP/s of the mode; 0 where nothing limits it."""
    attention_s: Array
    attention_read_s: Array
    head_s: Array
    head_read_s: Array
    head_unpack_s: Array
    quantized: NDArray[np.bool_]
    per_overhead: Array
    """How often the overhead is paid: once, or for each layer."""

    @classmethod
    def of(cls, speeds: Sequence[PublishedSpeed]) -> "SpeedTerms":
        columns = np.array([_terms(speed) for speed in speeds], dtype=np.float64).T
        linear, read, unpack, attention, attention_read, head, head_read, head_unpack, quantized, overheads = columns
        return cls(
            linear, read, unpack, attention, attention_read, head, head_read, head_unpack, quantized > 0, overheads
        )

    def predict_s(self, figures: Array) -> Array:
        """Seconds of each row, from its figures (rows, `FIGURES`)."""
        compute, bandwidth, quantized, overhead_s, per_tflops = figures.T
        share = np.where(self.quantized, quantized, bandwidth)
        read_s = np.maximum(self.linear_read_s / share, self.unpack_s / per_tflops)
        head_read_s = np.maximum(self.head_read_s / share, self.head_unpack_s / per_tflops)
        return np.asarray(
            np.hypot(self.linear_s / compute, read_s)
            + np.hypot(self.attention_s / compute, self.attention_read_s / bandwidth)
            + np.hypot(self.head_s / compute, head_read_s)
            + self.per_overhead * overhead_s
        )


def _terms(speed: PublishedSpeed) -> tuple[float, ...]:
    mode, model, load = speed.chip.mode(speed.mode), speed.architecture, speed.load
    assert mode.fp16_tflops is not None
    assert mode.memory_gbps is not None
    flops, nbytes = mode.fp16_tflops * 1e12, mode.memory_gbps * 1e9
    quantized = speed.precision in ("int8", "int4")
    unpacked = mode.fp16_tflops * 1e9 if quantized and is_limited(*speed.group) else np.inf
    attends = speed.phase != "linear"
    weights, head = model.blocks_nbytes(speed.precision), model.head_nbytes(speed.precision) * bool(load.head_tokens)
    return (
        2 * model.matmul_parameters * load.num_tokens / flops,
        weights / nbytes,
        weights / unpacked,
        attends * model.flops_per_interaction() * load.interactions / flops,
        attends * model.kv_nbytes_per_token(speed.precision) * load.cached_tokens / nbytes,
        2 * model.head_parameters * load.head_tokens / flops,
        head / nbytes,
        head / unpacked,
        quantized,
        0.0 if speed.software == KERNELS else load.layers if speed.software in EAGER else 1.0,
    )


def is_limited(silicon: str, software: str) -> bool:
    """True for boards whose power modes slow the GPU but not the memory: unpacking of weights may be the limit."""
    return silicon.startswith("jetson") and software in ("llama_cpp", "mlc")


@dataclass(frozen=True)
class _SoftwareFit:
    """Logarithms of one software's `FIGURES`, and how far each processor's are from them."""

    average: Array
    deviations: dict[str, Array]

    def figures(self, silicon: str) -> Array:
        found = np.exp(self.average + self.deviations.get(silicon, 0.0))
        return np.asarray(np.where(_IS_SHARE, np.minimum(found, 1.0), found))


_IS_SHARE = np.array([True, True, True, False, False])


class SpeedFit:
    """What each software reaches, on each processor that has rows and on an average one."""

    def __init__(self, speeds: Sequence[PublishedSpeed]) -> None:
        self._fits = _fit_each(speeds, {speed.software for speed in speeds})

    def refitted(self, speeds: Sequence[PublishedSpeed], software: Set[str]) -> "SpeedFit":
        """A fit of these software on other rows; all other software as here."""
        found = SpeedFit(())
        kept = {name: fit for name, fit in self._fits.items() if name not in software}
        found._fits = kept | _fit_each(speeds, software)
        return found

    @property
    def software(self) -> tuple[str, ...]:
        return tuple(self._fits)

    def knows_software(self, software: str) -> bool:
        """True if there were rows of it on any processor."""
        return software in self._fits

    def figures(self, silicon: str, software: str) -> Array:
        """`FIGURES` of this software on this processor, or on an average one if there were no rows."""
        return self._fits[software].figures(silicon)

    def knows(self, silicon: str, software: str) -> bool:
        """True if there were rows of this software on this processor."""
        return software in self._fits and silicon in self._fits[software].deviations

    def predict_s(self, speeds: Sequence[PublishedSpeed], stand_in: str = "") -> Array:
        """Seconds of each row; by the figures of another processor if `stand_in` names one."""
        if not speeds:
            return np.zeros(0)
        figures = [self.figures(stand_in or speed.silicon, speed.software) for speed in speeds]
        return SpeedTerms.of(speeds).predict_s(np.array(figures))

    def efficiency(self, silicon: str, software: str, source: str) -> SoftwareEfficiency:
        """The figures as a chip's `software`."""
        compute, bandwidth, quantized, overhead_s, per_tflops = map(float, self.figures(silicon, software))
        limited, eager = is_limited(silicon, software), software in EAGER
        return SoftwareEfficiency(
            round(compute, 3), round(bandwidth, 3), round(quantized, 3), round(per_tflops, 2) if limited else None,
            0.0 if eager else round(overhead_s, 5), round(overhead_s, 6) if eager else 0.0, {"all": source},
        )  # fmt: skip


def _fit_each(speeds: Sequence[PublishedSpeed], software: Set[str]) -> dict[str, _SoftwareFit]:
    rows = {name: [speed for speed in speeds if speed.software == name] for name in sorted(software)}
    return {name: _fit(own, name) for name, own in rows.items() if own}


def _fit(speeds: Sequence[PublishedSpeed], software: str) -> _SoftwareFit:
    from scipy.optimize import least_squares

    terms, seconds = SpeedTerms.of(speeds), np.log([speed.seconds for speed in speeds])
    names = sorted({speed.silicon for speed in speeds})
    row = np.array([names.index(speed.silicon) for speed in speeds])
    start = np.where(np.arange(len(FIGURES)) == 3, np.log(_EAGER_START_S), _START) if software in EAGER else _START

    def residuals(x: Array) -> Array:
        average, *deviations = x.reshape(-1, len(FIGURES))
        figures = np.array([_SoftwareFit(average, {"": each}).figures("") for each in deviations])
        errors = np.log(terms.predict_s(figures[row])) - seconds
        prior = [(average - start) / _SOFTWARE_SPREAD, *(each / _GROUP_SPREAD for each in deviations)]
        return np.concatenate([np.arcsinh(errors / _OUTLIER), _PRIOR_WEIGHT * np.concatenate(prior)])

    begin = np.concatenate([start, np.zeros(len(FIGURES) * len(names))])
    average, *deviations = least_squares(residuals, begin, max_nfev=60, x_scale="jac").x.reshape(-1, len(FIGURES))
    return _SoftwareFit(average, dict(zip(names, deviations, strict=True)))
