"""The table of results that all writers take: LaTeX, CSV, HTML. Exhibits, sweeps and boards are turned into it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Literal

from pipeline.report.estimate import Estimate
from pipeline.report.prompt_sums import PromptSums
from pipeline.report.table import format_number, shared_decimals

Direction = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class ResultColumn:
    """A column of numbers in one `unit`.

    better    "" for a column in which no value is better than another
    metric    the key of `serving.metrics.definitions`; empty for other numbers
    """

    name: str
    unit: str = ""
    better: Direction = ""
    metric: str = ""

    @property
    def heading(self) -> str:
        """The name with its unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass(frozen=True)
class ResultCell:
    """A number between `low` and `high` (95 %), in its column's unit, or a `text` in its place. With both, the text is
    shown, and a page sorts by the number.

    reported    what a paper says
    by_seed     the value of each seed; a single run without a seed's name has the key ""
    estimate    resamples by seed and prompt, which pair with another cell's
    sums        sums by prompt of a single run, for a permutation test
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    reported: float | str | None = None
    by_seed: Mapping[str, float] = field(default_factory=dict)
    num_prompts: int = 0
    estimate: Estimate | None = None
    sums: PromptSums | None = None

    @classmethod
    def of(cls, found: Estimate, sums: PromptSums | None = None, reported: float | str | None = None) -> ResultCell:
        interval = found.interval
        low, high = (interval.low, interval.high) if interval else (None, None)
        return cls(found.value, low, high, "", reported, dict(found.values), found.num_prompts, found, sums)

    @property
    def known(self) -> list[float]:
        """Its numbers: value and bounds."""
        return [one for one in (self.value, self.low, self.high) if one is not None]

    def format_value(self) -> str:
        """The value alone in its digits, as it is compared with others; a dash without one."""
        if self.text or self.value is None:
            return self.text or "-"
        return self._shaped(self.value)

    def format_bounds(self) -> tuple[str, str] | None:
        if self.low is None or self.high is None:
            return None
        return self._shaped(self.low), self._shaped(self.high)

    def _shaped(self, value: float) -> str:
        if not isfinite(value):
            return str(value)
        return f"{value:,.{shared_decimals(self.known)}f}" if self.low is not None else format_number(value)


@dataclass(frozen=True)
class ResultRow:
    """`labels` stand below the table's `label_heads`; rows of one `group` are compared with one another.

    problem     why the row has no cells, or lacks some of its seeds
    """

    labels: tuple[str, ...]
    cells: tuple[ResultCell, ...] = ()
    group: str = ""
    problem: str = ""
    num_requests: int = 0

    @property
    def is_empty(self) -> bool:
        return not any(cell.known or cell.text or cell.reported is not None for cell in self.cells)


@dataclass(frozen=True)
class ResultTable:
    """Rows of cells below columns.

    name        of its files
    against     row -> the row of its baseline; None: rows are compared with the best of their group
    notes       pairs of label and text, which stand below it
    """

    name: str
    title: str
    label_heads: tuple[str, ...]
    columns: tuple[ResultColumn, ...]
    rows: tuple[ResultRow, ...]
    against: Mapping[int, int] | None = None
    notes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.labels) != len(self.label_heads) or len(row.cells) not in (0, len(self.columns)):
                raise ValueError(
                    f"{self.name}: the row {row.labels} has {len(row.labels)} labels and {len(row.cells)} cells; "
                    f"{len(self.label_heads)} labels are wanted, and {len(self.columns)} cells or none"
                )

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(row.group for row in self.rows))

    @cached_property
    def reported_columns(self) -> frozenset[int]:
        """The columns in which a paper reports a value."""
        return frozenset(
            place for row in self.rows for place, cell in enumerate(row.cells) if cell.reported is not None
        )

    def places(self, group: str) -> list[int]:
        """The rows of a group that have cells."""
        return [place for place, row in enumerate(self.rows) if row.group == group and row.cells]


def format_reported(value: float | str | None) -> str:
    return "-" if value is None else str(value)


def format_cell(cell: ResultCell) -> str:
    """The cell as `x [low, high]`, in its own digits."""
    bounds = cell.format_bounds()
    return cell.format_value() + (f" [{bounds[0]}, {bounds[1]}]" if bounds else "")
