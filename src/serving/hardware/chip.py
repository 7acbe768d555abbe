"""A chip: its figures in each power mode with their sources, and the roofline latency that follows from them."""

from dataclasses import dataclass, field, fields
from pathlib import Path

from serving.core.provenance import check_sources
from serving.hardware.architecture import Architecture, Precision
from serving.hardware.latency import FittedLatencies, LatencyModel
from serving.hardware.price import Price


@dataclass(frozen=True)
class PowerMode:
    """Clocks and peaks in one power mode; None: unknown, or the chip has none."""

    fp16_tflops: float | None = None
    """Dense FP16 peak of the processor that runs the model, not the sparse headline."""
    fp32_tflops: float | None = None
    memory_gbps: float | None = None
    """Peak bandwidth, 10^9 bytes per second."""
    power_w: float | None = None
    int8_tops: float | None = None
    headline_tops: float | None = None
    """Advertised for this mode, if it differs from the chip's `headline_tops`."""
    nvpmodel_id: int | None = None
    gpu_mhz: float | None = None
    emc_mhz: float | None = None
    cpu_cores: int | None = None
    cpu_mhz: float | None = None
    tpcs: int | None = None
    """Active texture processing clusters, two SMs each."""
    sources: dict[str, str] = field(default_factory=dict)
    """Sources of this mode's figures, if they differ from the chip's `sources`."""

    def __post_init__(self) -> None:
        check_sources("mode", self.sources, _MODE_FIGURES)
        for name in _MODE_FIGURES - {"nvpmodel_id"}:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"mode: {name}={value} must be above 0; leave out unknown figures.")


@dataclass(frozen=True)
class Chip:
    """Memory, power modes and efficiencies, every figure with its source.

    `sources` maps a field of the chip or of all its modes to `class: reason`; the class is datasheet, derived, measured
    or unverified. Efficiencies are the shares of the peaks that a forward reaches.
    """

    name: str
    modes: dict[str, PowerMode]
    default_mode: str
    memory_gb: float | None = None
    """In 2^30 bytes; None: unknown, no model is refused for its size."""
    compute_efficiency: float = 1.0
    bandwidth_efficiency: float = 1.0
    launch_overhead_s: float = 0.0
    """Host time per forward that no kernel hides."""
    idle_w: float | None = None
    headline_tops: float | None = None
    """Advertised peak (sparse INT8, accelerators included); not used in computations."""
    sources: dict[str, str] = field(default_factory=dict)
    fitted: dict[str, FittedLatencies] = field(default_factory=dict)
    """Latency coefficients fitted on this chip, by name; a fleet's `timing` chooses one."""
    profile: Path | None = None
    """Artifact of the profile stage, for `timing: profile`."""
    price: Price | None = None
    """What an hour of it costs; None: not known, and then neither is the cost of what it computes."""

    def __post_init__(self) -> None:
        check_sources(f"chip {self.name}", self.sources, _CHIP_FIGURES | _MODE_FIGURES)
        self.mode(None)
        for name in ("compute_efficiency", "bandwidth_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"chip {self.name}: {name}={getattr(self, name)} must be a share of the peak: above 0, at most 1."
                )
        for name in ("memory_gb", "launch_overhead_s", "idle_w"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ValueError(f"chip {self.name}: {name}={value} must not be negative.")

    def mode(self, name: str | None) -> PowerMode:
        """The mode of that name, None: the default mode. Raises ValueError that lists the chip's modes."""
        mode = self.modes.get(self.default_mode if name is None else name)
        if mode is None:
            raise ValueError(
                f"chip {self.name} has no mode {name or self.default_mode!r}. Its modes: {', '.join(self.modes)}; "
                f"default {self.default_mode}."
            )
        return mode

    def source(self, figure: str, mode: str | None = None) -> str | None:
        """Source of a figure of the chip or of one of its modes; None if there is none."""
        own = self.mode(mode).sources.get(figure) if figure in _MODE_FIGURES else None
        return own or self.sources.get(figure)

    def unsourced(self) -> tuple[str, ...]:
        """Names of given figures without a source."""
        unsourced = [
            name for name in sorted(_CHIP_FIGURES) if getattr(self, name) is not None and not self.source(name)
        ]
        for key, mode in self.modes.items():
            given = [name for name in sorted(_MODE_FIGURES) if getattr(mode, name) is not None]
            unsourced += [f"{key}.{name}" for name in given if not self.source(name, key)]
        return tuple(unsourced)

    def joules(self, mode: str | None, busy_s: float, idle_s: float = 0.0) -> float | None:
        """Energy: the mode's power budget while busy, `idle_w` otherwise; None if either power is unknown.

        The budget is an upper bound: a memory-bound forward draws less. A link's radio is not counted.
        """
        power_w = self.mode(mode).power_w
        if power_w is None or self.idle_w is None:
            return None
        return power_w * busy_s + self.idle_w * idle_s


_NOT_FIGURES = {"name", "modes", "default_mode", "sources", "fitted", "profile", "price"}
_MODE_FIGURES = frozenset(each.name for each in fields(PowerMode)) - _NOT_FIGURES
_CHIP_FIGURES = frozenset(each.name for each in fields(Chip)) - _NOT_FIGURES


def roofline(
    chip: Chip, mode: str | None, architecture: Architecture, precision: Precision, tensor_parallel: int = 1
) -> LatencyModel:
    """Latency coefficients from a chip's figures and an architecture's shape.

    Linear layers: 2 FLOPs per weight over dense peak times compute efficiency. Attention: 4 x head_dim FLOPs per head
    and (query, key) pair, over the same. Cached tokens: KV bytes over bandwidth times bandwidth efficiency. Constant:
    weight bytes over the same, plus the launch overhead. Compute and memory time are added, as in WISP, Eq. 19; a true
    roofline takes the larger, so the result is at most twice too slow. Tensor parallelism divides all but the launch
    overhead; all-reduces are not charged. Raises ValueError for a chip without these figures.
    """
    figures = chip.mode(mode)
    peak = figures.fp32_tflops if precision == "fp32" else figures.fp16_tflops
    if peak is None or figures.memory_gbps is None:
        raise ValueError(
            f"chip {chip.name} has no {'FP32' if precision == 'fp32' else 'FP16'} peak or no bandwidth in mode "
            f"{mode or chip.default_mode}, so there is no roofline. Use its profile (timing: profile) or give both."
        )
    flops = peak * 1e12 * chip.compute_efficiency * tensor_parallel
    nbytes = figures.memory_gbps * 1e9 * chip.bandwidth_efficiency * tensor_parallel
    return LatencyModel(
        a_s=2 * architecture.matmul_parameters / flops,
        b_compute_s=architecture.flops_per_interaction() / flops,
        b_read_s=architecture.kv_nbytes_per_token(precision) / nbytes,
        c_s=architecture.blocks_nbytes(precision) / nbytes + chip.launch_overhead_s,
        head_token_s=2 * architecture.head_parameters / flops,
        head_c_s=architecture.head_nbytes(precision) / nbytes,
        layers=architecture.layers,
        source=f"roofline of {chip.name} in mode {mode or chip.default_mode}, {architecture.name}, {precision}"
        + (f", {tensor_parallel} chips" if tensor_parallel > 1 else ""),
    )
