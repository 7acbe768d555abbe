"""What an answer must keep: limits of measured values, and what a configuration breaks of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from serving.metrics import definitions


@dataclass(frozen=True)
class Limit:
    """A requirement on one metric: at most `most`, or at least `least`."""

    name: str
    metric: str
    most: float | None = None
    least: float | None = None

    def excess(self, metrics: Mapping[str, float]) -> float:
        """The share by which the metric breaks the limit; 0 if it keeps it, 1 where the metric is not known."""
        value = metrics.get(self.metric)
        if value is None:
            return 1.0
        if self.most is not None:
            return max(0.0, value / self.most - 1) if self.most else float(value > 0)
        assert self.least is not None
        return max(0.0, 1 - value / self.least) if self.least else float(value < 0)

    def describe(self, metrics: Mapping[str, float]) -> str:
        """`TTFT, p90: 0.61 s, more than 0.5`."""
        value = metrics.get(self.metric)
        if value is None:
            return f"{self.name}: not known"
        bound = f"more than {self.most:g}" if self.most is not None else f"less than {self.least:g}"
        return f"{self.name}: {with_unit(f'{value:.3g}', self.metric)}, {bound}"


def with_unit(number: str, metric: str) -> str:
    """The number with the metric's unit; a score and a share have none."""
    found = definitions.find(metric)
    return f"{number} {found.unit}" if found and found.unit not in ("score", "share") else number


@dataclass(frozen=True)
class Requirements:
    """Limits of a service; null: none. Raises ValueError for limits that nothing can keep.

    `ttft_p90_s`, `tbt_p90_s` and `service_p90_s_per_token` are seconds that 90 % of all requests keep, the last one
    over a whole answer; `energy_max_j` is what a device spends on a token, chip and radio; `cost_max` is US dollars of
    the cloud for a million tokens; `devices_min` is how many devices are served at once.
    """

    METRICS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "ttft_p90_s": ("TTFT, p90", "latency/ttft_s/p90"),
        "tbt_p90_s": ("TBT, p90", "latency/tbt_s/p90"),
        "service_p90_s_per_token": ("service a token, p90", "latency/service_s_per_token/p90"),
        "energy_max_j": ("energy of a device a token", "resources/device_total_j_per_token"),
        "cost_max": ("cost, USD/M tokens", "cost/usd_per_million_tokens"),
    }

    USUAL: ClassVar[Mapping[str, tuple[float, float]]] = {
        "ttft_p90_s": (0.01, 60), "tbt_p90_s": (0.001, 5), "service_p90_s_per_token": (0.001, 5),
    }  # fmt: skip

    ttft_p90_s: float | None = None
    tbt_p90_s: float | None = None
    service_p90_s_per_token: float | None = None
    energy_max_j: float | None = None
    cost_max: float | None = None
    quality_min: float | None = None
    lossless: bool = True
    devices_min: int | None = None

    def __post_init__(self) -> None:
        for name in self.METRICS:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"require.{name} is {value}; it is a limit above 0, or null for none")
        if self.quality_min is not None and not 0 <= self.quality_min <= 1:
            raise ValueError(f"require.quality_min is {self.quality_min}; a quality lies between 0 and 1")
        if self.devices_min is not None and self.devices_min < 1:
            raise ValueError(f"require.devices_min is {self.devices_min}; give 1 device or more, or null")

    def unusual(self) -> Iterator[str]:
        """A note for each limit that is possible and probably in another unit than was meant."""
        for name, (low, high) in self.USUAL.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                unit = with_unit("", self.METRICS[name][1]).strip()
                yield f"require.{name} is {value:g} {unit}, usually {low:g} to {high:g}. Is it meant so?"

    def limits(self, with_quality: bool = False) -> Iterator[Limit]:
        """The limits of what a simulation measures; `with_quality` also that of what a run on text measures."""
        for name, (label, metric) in self.METRICS.items():
            value = getattr(self, name)
            if value is not None:
                yield Limit(label, metric, most=value)
        if with_quality and self.quality_min is not None:
            yield Limit("quality", "quality/mean", least=self.quality_min)

    def describe(self) -> str:
        """`TTFT, p90 at most 0.5 s; every token the cloud model's own`."""
        parts = [f"{one.name} at most {with_unit(f'{one.most:g}', one.metric)}" for one in self.limits()]
        parts += [f"quality at least {self.quality_min:g}"] if self.quality_min is not None else []
        parts += [f"{self.devices_min} devices"] if self.devices_min else []
        parts += ["every token the cloud model's own"] if self.lossless else []
        return "; ".join(parts) or "none"
