"""A fleet of equal nodes: chip, power mode, link and latency; and whether a model fits their memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from serving.core.keyed_random import uniform
from serving.hardware.architecture import Architecture, Precision
from serving.hardware.chip import Chip, PowerMode, roofline
from serving.hardware.fitted_latencies import FittedLatencies, load_fitted_latencies
from serving.hardware.heat import Heat, slowed
from serving.hardware.latency import LatencyModel, LinearLatency
from serving.hardware.roofline import RooflineLatency, TimeFactors
from serving.network.link import Link

GB = 2**30


@dataclass(frozen=True)
class PowerModeSchedule:
    """Power modes that change during a run, every `requests_per_mode` requests of a device."""

    modes: tuple[str, ...]
    requests_per_mode: int = 1
    order: Literal["random", "cycle"] = "random"

    def __post_init__(self) -> None:
        if not self.modes:
            raise ValueError("schedule: modes is empty; list the power modes to change between.")
        if self.requests_per_mode < 1:
            raise ValueError(f"schedule: requests_per_mode={self.requests_per_mode} must be at least 1.")

    def mode(self, stream: int, request: int) -> str:
        """The mode in which a device serves its `request`, counted from 0; `stream` is from
        `serving.core.keyed_random.key`.
        """
        period = request // self.requests_per_mode
        if self.order == "cycle":
            return self.modes[period % len(self.modes)]
        return self.modes[int(uniform(stream, period, "mode") * len(self.modes))]


@dataclass(frozen=True)
class Fleet:
    """`count` equal nodes."""

    chip: Chip
    mode: str | None = None
    count: int = 1
    schedule: PowerModeSchedule | None = None
    network: Link | None = None
    """Link of these nodes; None: the run's network."""
    tensor_parallel: int = 1
    """Chips of each node, which share one model."""
    precision: Precision = "fp16"
    timing: str = "roofline"
    """roofline, profile, or a name in the chip's `fitted`."""
    software: str | None = None
    """The inference engine whose measured figures the roofline uses; None: the chip's default."""
    time_factors: TimeFactors | None = None
    """What the roofline's times are multiplied by: a draw of the clock (`serving.hardware.clock_draw`)."""
    heat: Heat = "cold"
    """cold: the chip's full speed; sustained: what its curve says of load that lasts."""

    def __post_init__(self) -> None:
        for name in ("count", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"fleet of {self.chip.name}: {name}={getattr(self, name)} must be at least 1.")
        if self.precision not in get_args(Precision):
            known = ", ".join(get_args(Precision))
            raise ValueError(f"fleet of {self.chip.name}: unknown precision {self.precision!r}; use one of {known}.")
        for mode in (self.mode, *(self.schedule.modes if self.schedule else ())):
            self.chip.mode(mode)
        if self.software is not None and self.timing == "roofline":
            self.chip.software_name(self.software)
        if self.timing not in ("roofline", "profile", *self.chip.fitted):
            known = ", ".join(("roofline", "profile", *self.chip.fitted))
            raise ValueError(f"fleet of {self.chip.name}: unknown timing {self.timing!r}; use one of {known}.")
        self._check_fitted()
        self._check_heat()

    def _check_fitted(self) -> None:
        """Fitted coefficients hold only for one chip in the default mode, and a profile is named by the chip."""
        if self.timing == "profile" and self.chip.profile is None:
            raise ValueError(
                f"fleet of {self.chip.name}: timing=profile needs the chip's profile, and it names none; set "
                "timing=roofline, or give the chip's file `profile`, as conf/hardware/chip/local.yaml has it."
            )
        differs = self.tensor_parallel > 1 or self.schedule or self.mode_name != self.chip.default_mode
        if self.timing != "roofline" and differs:
            raise ValueError(
                f"fleet of {self.chip.name}: timing={self.timing} was measured on one chip in mode "
                f"{self.chip.default_mode}; tensor_parallel, a schedule and other modes need timing=roofline."
            )

    def _check_heat(self) -> None:
        if self.heat not in get_args(Heat):
            known = ", ".join(get_args(Heat))
            raise ValueError(f"fleet of {self.chip.name}: unknown heat {self.heat!r}; use one of {known}.")
        if self.heat == "sustained" and self.chip.sustained is None:
            raise ValueError(
                f"fleet of {self.chip.name}: heat=sustained needs the chip's curve of sustained speed, and none is "
                "known; set heat=cold, or give the chip `sustained` (docs/clock.md)."
            )

    @property
    def mode_name(self) -> str:
        return self.mode or self.chip.default_mode

    @property
    def power_mode(self) -> PowerMode:
        return self.chip.mode(self.mode)

    @property
    def memory_nbytes(self) -> float | None:
        """Memory of one node, all its chips; None: unknown."""
        return None if self.chip.memory_gb is None else self.chip.memory_gb * GB * self.tensor_parallel

    def mode_at(self, stream: int, request: int) -> str:
        """The mode of one device at its `request`-th request."""
        return self.schedule.mode(stream, request) if self.schedule else self.mode_name

    def latency(self, architecture: Architecture, mode: str | None = None) -> LatencyModel:
        """Latency coefficients of this architecture, in the fleet's mode or in `mode`; slower if the chip is hot.

        If the fitted coefficients lack this architecture, the roofline is used and its `source` says so. Raises
        ValueError if there is neither.
        """
        cold = self._cold_latency(architecture, mode)
        return slowed(cold, self.chip.sustained.share) if self.heat == "sustained" and self.chip.sustained else cold

    def _cold_latency(self, architecture: Architecture, mode: str | None) -> RooflineLatency | LinearLatency:
        if self.timing == "roofline":
            return self._roofline(architecture, mode)
        fits = self._fitted_latencies()
        if found := fits.latencies.get(architecture.name):
            return found
        try:
            model = self._roofline(architecture, mode)
        except ValueError as error:
            raise ValueError(f"{fits.source} has no coefficients for {architecture.name}, and {error}") from None
        return replace(model, source=f"{model.source} ({self.timing} has no {architecture.name})")

    def joules(self, busy_s: float, idle_s: float = 0.0, mode: str | None = None) -> float | None:
        """Energy of one node, all its chips: see `Chip.joules`."""
        per_chip = self.chip.joules(mode or self.mode, busy_s, idle_s)
        return None if per_chip is None else per_chip * self.tensor_parallel

    def usd(self, busy_s: float) -> float | None:
        """US dollars for the busy seconds of one node, all its chips; None if the chip has no price."""
        return self.chip.price.usd(busy_s * self.tensor_parallel) if self.chip.price else None

    def _roofline(self, architecture: Architecture, mode: str | None) -> RooflineLatency:
        found = roofline(
            self.chip, mode or self.mode_name, architecture, self.precision, self.tensor_parallel, self.software
        )
        return found.scaled(self.time_factors) if self.time_factors else found

    def _fitted_latencies(self) -> FittedLatencies:
        if self.timing == "profile" and self.chip.profile:
            return load_fitted_latencies(self.chip.profile)
        return self.chip.fitted[self.timing]


def total_or_unknown(spent: Sequence[float | None]) -> float | None:
    """The sum of energies or prices; None if a part is not known."""
    known = [part for part in spent if part is not None]
    return sum(known, 0.0) if len(known) == len(spent) else None


def check_memory(
    fleet: Fleet, architecture: Architecture, sessions: int, tokens: int, beside: Architecture | None = None
) -> None:
    """Raises ValueError if weights, KV cache of `sessions` x `tokens` and one forward of `tokens` tokens do not fit.

    `beside`: another model on the same chip, with the same sessions. Raises ValueError also if both fleet and model
    quantise the weights. The operating system's share of a unified memory is not counted.
    """
    if architecture.quantization != "none" and fleet.precision in ("int8", "int4"):
        raise ValueError(
            f"{architecture.name} is quantised, and precision={fleet.precision} of {fleet.chip.name} would quantise "
            "its weights again; set the hardware's precision to fp16, or the model's quantization to none."
        )
    memory = fleet.memory_nbytes
    weights, cache, activations = _memory_terms(fleet, architecture, sessions, tokens, beside)
    if memory is None or weights + cache + activations <= memory:
        return
    chips = f"{fleet.tensor_parallel} x " if fleet.tensor_parallel > 1 else ""
    named = f"{architecture.name} with {beside.name}" if beside else architecture.name
    raise ValueError(
        f"{named} does not fit into {chips}{fleet.chip.name} ({_gb(memory)}) in {fleet.precision}: "
        f"weights {_gb(weights)} + KV cache {_gb(cache)} ({sessions} sessions x {tokens} tokens) "
        f"+ activations {_gb(activations)} = {_gb(weights + cache + activations)}. {_memory_advice(weights, memory)}"
    )


def fits_memory(
    fleet: Fleet, architecture: Architecture, sessions: int, tokens: int, beside: Architecture | None = None
) -> bool:
    """True if the model fits the memory as in `check_memory`."""
    memory = fleet.memory_nbytes
    return memory is None or sum(_memory_terms(fleet, architecture, sessions, tokens, beside)) <= memory


def _memory_terms(
    fleet: Fleet, architecture: Architecture, sessions: int, tokens: int, beside: Architecture | None
) -> tuple[float, float, float]:
    """Bytes of weights, KV cache and activations. Two models compute in turn: the larger activations count."""
    held = [each for each in (architecture, beside) if each]
    return (
        sum(each.weights_nbytes(fleet.precision) for each in held),
        sessions * tokens * sum(each.kv_nbytes_per_token(fleet.precision) for each in held),
        max(each.activation_nbytes(tokens, fleet.precision, head_tokens=sessions) for each in held),
    )


def _memory_advice(weights: float, memory: float) -> str:
    if weights < memory:
        return "Serve fewer or shorter sessions, store the weights in fewer bits (precision), or use a larger chip."
    return "Store the weights in fewer bits (precision), use more chips (tensor_parallel) or a smaller model."


def _gb(nbytes: float) -> str:
    return f"{nbytes / GB:.2f} GB"
