"""What the claims of a kept result rest on: the clock of chip models or not, measured batches or not, seeds or not.

A kept file names the files of conf/ that its jobs were composed of. A chip with figures of software among them times
forwards by its roofline, whose errors are known (docs/clock.md), unless the testbed of that chip chooses coefficients.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config import sources
from pipeline.report.exhibit.schema import ExhibitColumn, full_metric_name
from pipeline.report.results.kept import KeptResult
from serving.metrics import definitions

_CHIP, _HARDWARE = "hardware/chip/", "hardware/"
Repeats = Literal["seeds", "one profile", "none"]
"""What could differ if an exhibit without seeds ran again: what a seed makes, a profile of this machine, or nothing."""


@dataclass(frozen=True)
class Declared:
    """What the files of an exhibit do not show.

    clock_groups    the groups whose times are a chip model's; None: all, if it has a chip model
    capacities      True if the claims say how much load a cloud carries
    """

    reason: str
    clock_groups: tuple[str, ...] | None = None
    capacities: bool = False
    repeats: Repeats = "seeds"


_PROFILE = "times are measured on this machine; the A100 beside them stands for the coefficients that WISP prints"
DECLARED: Mapping[str, Declared] = {
    "synera/fig15": Declared("a knee is the load that the cloud carries", capacities=True),
    "wisp/table2": Declared(
        "Qwen3-32B has the coefficients of WISP's Table 12, Qwen3-14B has none", ("Qwen3-14B",), capacities=True
    ),
    "wisp/sensitivity": Declared(
        "one group is on the roofline, the others are on WISP's coefficients", ("roofline",), capacities=True
    ),
    "wisp/fig4": Declared(
        "the other group is measured on this machine", ("llama2_70b on 2 x a100_80gb",), repeats="one profile"
    ),
    "wisp/fig9": Declared(_PROFILE, (), repeats="one profile"),
    "wisp/fig11": Declared(_PROFILE, (), repeats="one profile"),
    "wisp/table7": Declared(_PROFILE, (), repeats="one profile"),
    "wisp/table11": Declared("calls of predictors are timed on this machine", (), repeats="one profile"),
    "wisp/table12": Declared(_PROFILE, (), repeats="one profile"),
    "hat/fig1c": Declared("arithmetic on a chip's roofline", repeats="none"),
    "hat/fig1d": Declared("arithmetic on a chip's roofline", repeats="none"),
    "synera/table3": Declared("arithmetic on a chip's memory and roofline", repeats="none"),
}
_NOTHING = Declared("")


@dataclass(frozen=True)
class Basis:
    """What one result rests on.

    metrics        column -> the metric that it shows
    compared       column -> the columns that it is compared with
    has_roofline   True if a chip model with known errors times it
    unmeasured     True if its cloud's chip has no measured batch
    declared_unmeasured   groups that its exhibit declares so
    """

    metrics: Mapping[str, str]
    compared: Mapping[str, Sequence[str]]
    has_roofline: bool
    unmeasured: bool
    declared_unmeasured: tuple[str, ...]
    declared: Declared

    @classmethod
    def of(cls, result: KeptResult) -> "Basis":
        """By the files that the result names, as they are today."""
        nodes = dict(_nodes(result))
        hardware = {name: node for name, node in nodes.items() if name.startswith(_HARDWARE)}
        chips = {name.removeprefix(_CHIP): node for name, node in hardware.items() if name.startswith(_CHIP)}
        testbeds = [node for name, node in hardware.items() if not name.startswith(_CHIP)]
        chosen = {fleet.get("timing") for node in nodes.values() for fleet in _fleets(node.get("hardware"))}
        fitted = _chips_on_coefficients(testbeds) if "roofline" not in chosen else set()
        columns = list(_columns(nodes))
        return cls(
            {one["name"]: ExhibitColumn(one["name"], one.get("metric", "")).metric_name for one in columns},
            {one["name"]: list(_compared_columns(one)) for one in columns},
            any(chip.get("software") and name not in fitted for name, chip in chips.items()),
            not any(_has_measured_batches(chips, bed.get("cloud")) for bed in testbeds),
            tuple(result.exhibit.get("unmeasured_batches", ())),
            DECLARED.get(result.experiment, _NOTHING),
        )

    def rests_on_clock(self, node: Mapping[str, Any]) -> bool:
        """True if a claim's metric depends on the clock, and its group is timed by a chip model."""
        groups = self.declared.clock_groups
        is_timed = self.has_roofline if groups is None else node.get("group", "") in groups
        return is_timed and self._metric_rests_on_clock(node["metric"])

    def _metric_rests_on_clock(self, column: str) -> bool:
        metric = self.metrics.get(column) or full_metric_name(column)
        return definitions.rests_on_clock(metric) or any(
            map(self._metric_rests_on_clock, self.compared.get(column, ()))
        )

    def lacks_batches(self, node: Mapping[str, Any]) -> bool:
        """True if a claim says what a cloud carries whose chip was never measured with batches."""
        if node.get("group", "") in self.declared_unmeasured:
            return True
        return self.declared.capacities and self.unmeasured and self.rests_on_clock(node)


def _nodes(result: KeptResult) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in result.files:
        if node := sources.read_named(name):
            yield name, node


def _columns(nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The exhibit's columns, as the composed files declare them."""
    declared = (node[sources.EXHIBIT] for node in nodes.values() if node.get(sources.EXHIBIT))
    return (column for exhibit in declared for column in exhibit.get("columns", ()))


def _compared_columns(column: Mapping[str, Any]) -> Iterator[str]:
    """Yields the columns that a column is compared with."""
    step = column.get("relative")
    while step:
        if name := step.get("column"):
            yield name
        step = step.get("then")


def _fleets(testbed: Any) -> Iterator[Mapping[str, Any]]:
    nodes = testbed.values() if isinstance(testbed, dict) else ()
    return (node for node in nodes if isinstance(node, dict))


def _chips_on_coefficients(testbeds: Sequence[Mapping[str, Any]]) -> set[str]:
    """The chips that a testbed times by a fit or a profile."""
    fleets = (fleet for bed in testbeds for fleet in _fleets(bed))
    return {str(fleet.get("chip")) for fleet in fleets if fleet.get("timing", "roofline") != "roofline"}


def _has_measured_batches(chips: Mapping[str, Mapping[str, Any]], cloud: Any) -> bool:
    """True if the figures of the cloud's chip were fitted to rows of more than one session."""
    chip = chips.get(cloud.get("chip", "")) if isinstance(cloud, dict) else None
    software = (chip or {}).get("software", {})
    if chip is None or not software:
        return False
    used = cloud.get("software") or chip.get("default_software") or next(iter(software))
    evidence = str(software.get(used, {}).get("sources", {}).get("all", ""))
    return evidence.startswith("measured") and ", batches " in evidence
