"""A chip: its figures in each power mode, what software reaches of them, and the roofline that follows."""

from dataclasses import dataclass, field, fields
from pathlib import Path

from serving.core.provenance import check_sources
from serving.hardware.architecture import Architecture, Precision
from serving.hardware.error_pools import is_checked
from serving.hardware.fitted_latencies import FittedLatencies
from serving.hardware.heat import SustainedSpeed
from serving.hardware.price import Price
from serving.hardware.roofline import RooflineLatency


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

    def check(self, owner: str, idle_w: float | None = None) -> None:
        """Raises ValueError that begins with `owner`, the chip and the name of this mode. `idle_w` is the chip's."""
        check_sources(owner, self.sources, _MODE_FIGURES)
        for name in sorted(_MODE_FIGURES - {"nvpmodel_id"}):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{owner}: {name}={value} must be above 0; leave out unknown figures.")
        if self.power_w is not None and idle_w is not None and self.power_w < idle_w:
            raise ValueError(
                f"{owner}: power_w={self.power_w} is below the chip's idle_w={idle_w}; a chip that computes draws at "
                "least what it draws idle. Correct one of the two."
            )


@dataclass(frozen=True)
class SoftwareEfficiency:
    """What an inference engine (vLLM, llama.cpp, transformers, ...) reaches of a chip's peaks, and what it adds."""

    compute_efficiency: float
    """Share of the dense peak that matrix products reach."""
    bandwidth_efficiency: float
    """Share of the peak bandwidth at which 16-bit and 32-bit weights, keys and values are read."""
    quantized_bandwidth_efficiency: float | None = None
    """The same for weights of fewer bits; None: no different."""
    quantized_gbps_per_tflops: float | None = None
    """Most GB/s of such weights for each TFLOP/s of the mode's FP16 peak: unpacking limits low power modes; None: no
    limit.
    """
    forward_overhead_s: float = 0.0
    """Time of the process for each forward that it starts."""
    layer_overhead_s: float = 0.0
    """Time of the process for each layer that runs: kernels launched one by one."""
    sources: dict[str, str] = field(default_factory=dict)
    """Sources of these figures; the key `all` stands for each without its own, and is what reports show."""

    def check(self, owner: str) -> None:
        """Raises ValueError that begins with `owner`, the chip and the name of this software."""
        check_sources(owner, self.sources, _SOFTWARE_FIGURES | {"all"})
        for name in ("compute_efficiency", "bandwidth_efficiency", "quantized_bandwidth_efficiency"):
            if (share := getattr(self, name)) is not None and not 0 < share <= 1:
                raise ValueError(f"{owner}: {name}={share} must be a share of the peak: above 0, at most 1.")
        for name in ("forward_overhead_s", "layer_overhead_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{owner}: {name}={getattr(self, name)} must not be negative.")
        if self.quantized_gbps_per_tflops is not None and self.quantized_gbps_per_tflops <= 0:
            raise ValueError(
                f"{owner}: quantized_gbps_per_tflops={self.quantized_gbps_per_tflops} must be above 0; null: no limit."
            )

    def source(self, figure: str) -> str | None:
        return self.sources.get(figure) or self.sources.get("all")

    @property
    def evidence(self) -> str:
        """What reports show of where the two efficiencies come from; empty if each has a source of its own."""
        if "all" in self.sources:
            return self.sources["all"]
        unsourced = [each for each in ("compute_efficiency", "bandwidth_efficiency") if not self.source(each)]
        return f"unverified: no source of {' and '.join(unsourced)}" if unsourced else ""

    @property
    def is_checked(self) -> bool:
        """True if the figures were fitted to rows of the chip, and checked on rows that a fit had not seen."""
        return is_checked(self.sources.get("all", ""))

    def read_gbps(self, mode: PowerMode, precision: Precision) -> float:
        """GB/s at which weights of this precision are read. The mode has a bandwidth."""
        assert mode.memory_gbps is not None
        if precision not in _QUANTIZED:
            return mode.memory_gbps * self.bandwidth_efficiency
        reached = mode.memory_gbps * (self.quantized_bandwidth_efficiency or self.bandwidth_efficiency)
        if self.quantized_gbps_per_tflops is None or mode.fp16_tflops is None:
            return reached
        return min(reached, self.quantized_gbps_per_tflops * mode.fp16_tflops)


_QUANTIZED = ("int8", "int4")


@dataclass(frozen=True)
class Chip:
    """Memory, power modes, and what software reaches of them, every figure with its source.

    `sources` maps a field of the chip or of all its modes to `class: reason`; the class is datasheet, derived, measured
    or unverified.
    """

    name: str
    modes: dict[str, PowerMode]
    default_mode: str
    memory_gb: float | None = None
    """In 2^30 bytes; None: unknown, no model is refused for its size."""
    software: dict[str, SoftwareEfficiency] = field(default_factory=dict)
    """What each known inference engine reaches; empty: there is no roofline, only fitted coefficients."""
    default_software: str | None = None
    """None: the only one."""
    idle_w: float | None = None
    headline_tops: float | None = None
    """Advertised peak (sparse INT8, accelerators included); not used in computations."""
    sources: dict[str, str] = field(default_factory=dict)
    fitted: dict[str, FittedLatencies] = field(default_factory=dict)
    """Latency coefficients fitted on this chip, by name; a fleet's `timing` chooses one."""
    profile: Path | None = field(default=None, repr=False)
    """Artifact of the profile stage, for `timing: profile`. No part of the repr: `Topology.digest`."""
    sustained: SustainedSpeed | None = None
    """What it keeps of its speed under load that lasts; None: not known."""
    price: Price | None = None
    """What an hour of it costs; None: not known, and then neither is the cost of what it computes."""

    def __post_init__(self) -> None:
        check_sources(f"chip {self.name}", self.sources, _CHIP_FIGURES | _MODE_FIGURES)
        self.mode(None)
        for key, mode in self.modes.items():
            mode.check(f"chip {self.name}, mode {key}", self.idle_w)
        for key, each in self.software.items():
            each.check(f"chip {self.name}, software {key}")
        if self.default_software is not None:
            self.reached_by(self.default_software)
        for name in ("memory_gb", "idle_w"):
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

    @property
    def has_peaks(self) -> bool:
        """True if some mode has the peaks that a roofline needs."""
        return any(mode.fp16_tflops and mode.memory_gbps for mode in self.modes.values())

    def software_name(self, name: str | None) -> str:
        """`name`, None: the default software. Raises ValueError that lists what is known for this chip."""
        chosen = name or self.default_software or (next(iter(self.software)) if len(self.software) == 1 else None)
        if chosen in self.software:
            return str(chosen)
        if not self.software:
            raise ValueError(
                f"chip {self.name} names no software, so there is no roofline: use its profile (timing: profile) or "
                "fitted coefficients, or give the chip `software`."
            )
        raise ValueError(
            f"chip {self.name} has no figures for the software {chosen or 'that runs the model'}. It has them for: "
            f"{', '.join(self.software)}. Choose one of these (software: NAME), or give the chip figures of your own."
        )

    def reached_by(self, software: str | None) -> SoftwareEfficiency:
        """What this software reaches, None: the default. Raises ValueError that lists what is known for this chip."""
        return self.software[self.software_name(software)]

    def source(self, figure: str, mode: str | None = None) -> str | None:
        """Source of a figure of the chip or of one of its modes; None if there is none."""
        own = self.mode(mode).sources.get(figure) if figure in _MODE_FIGURES else None
        return own or self.sources.get(figure)

    def unsourced(self) -> tuple[str, ...]:
        """Names of given figures without a source."""
        unsourced = [
            name for name in sorted(_CHIP_FIGURES) if getattr(self, name) is not None and not self.source(name)
        ]
        for key, software in self.software.items():
            unsourced += [
                f"software.{key}.{name}"
                for name in sorted(_SOFTWARE_FIGURES)
                if getattr(software, name) and not software.source(name)
            ]
        for key, mode in self.modes.items():
            given = [name for name in sorted(_MODE_FIGURES) if getattr(mode, name) is not None]
            unsourced += [f"{key}.{name}" for name in given if not self.source(name, key)]
        return tuple(unsourced)

    def joules(self, mode: str | None, busy_s: float, idle_s: float = 0.0) -> float | None:
        """Energy: the mode's power budget while busy, `idle_w` otherwise; None if either power is unknown.

        The budget is an upper bound: a memory-bound forward draws less, and so does a hot chip that has slowed down.
        The radio is the link's (`serving.network.radio`).
        """
        power_w = self.mode(mode).power_w
        if power_w is None or self.idle_w is None:
            return None
        return power_w * busy_s + self.idle_w * idle_s


_NOT_FIGURES = {
    "name",
    "modes",
    "default_mode",
    "sources",
    "fitted",
    "profile",
    "price",
    "sustained",
    "software",
    "default_software",
}
_MODE_FIGURES = frozenset(each.name for each in fields(PowerMode)) - _NOT_FIGURES
_SOFTWARE_FIGURES = frozenset(each.name for each in fields(SoftwareEfficiency)) - _NOT_FIGURES
_CHIP_FIGURES = frozenset(each.name for each in fields(Chip)) - _NOT_FIGURES


def roofline(
    chip: Chip, mode: str | None, architecture: Architecture, precision: Precision, tensor_parallel: int = 1,
    software: str | None = None,
) -> RooflineLatency:  # fmt: skip
    """The roofline of an architecture on a chip, with what the software reaches of its peaks.

    Linear layers: 2 FLOPs per weight against the reading of all weights. Attention: 4 x head_dim FLOPs per head and
    (query, key) pair against the reading of cached keys and values. Tensor parallelism divides all but the overheads;
    all-reduces are not charged. Raises ValueError for a chip without these figures.
    """
    figures, name = chip.mode(mode), chip.software_name(software)
    reached = chip.software[name]
    peak = figures.fp32_tflops if precision == "fp32" else figures.fp16_tflops
    if peak is None or figures.memory_gbps is None:
        raise ValueError(
            f"chip {chip.name} has no {'FP32' if precision == 'fp32' else 'FP16'} peak or no bandwidth in mode "
            f"{mode or chip.default_mode}, so there is no roofline. Use its profile (timing: profile) or give both."
        )
    flops = peak * 1e12 * reached.compute_efficiency * tensor_parallel
    blocks_precision: Precision = precision if architecture.quantization == "none" else "int4"
    blocks_nbytes_s = reached.read_gbps(figures, blocks_precision) * 1e9 * tensor_parallel
    head_nbytes_s = reached.read_gbps(figures, precision) * 1e9 * tensor_parallel
    cache_nbytes_s = figures.memory_gbps * 1e9 * reached.bandwidth_efficiency * tensor_parallel
    chips = f", {tensor_parallel} chips" if tensor_parallel > 1 else ""
    evidence = f" ({reached.evidence})" if reached.evidence else ""
    return RooflineLatency(
        linear_token_s=2 * architecture.matmul_parameters / flops,
        linear_read_s=architecture.blocks_nbytes(precision) / blocks_nbytes_s,
        attention_pair_s=architecture.flops_per_interaction() / flops,
        attention_read_s=architecture.kv_nbytes_per_token(precision) / cache_nbytes_s,
        head_token_s=2 * architecture.head_parameters / flops,
        head_read_s=architecture.head_nbytes(precision) / head_nbytes_s,
        forward_s=reached.forward_overhead_s,
        layer_s=reached.layer_overhead_s,
        layers=architecture.layers,
        source=f"roofline of {chip.name} in mode {mode or chip.default_mode}, {architecture.name}, {precision}{chips}, "
        f"{name}{evidence}",
    )
