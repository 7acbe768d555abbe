"""The rows of an exhibit with their cells, and templates over choices: `budget {policy.offload.budget}`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.report.choices import split_override
from pipeline.report.estimate import Estimate
from pipeline.report.exhibit.schema import Exhibit, ExhibitColumn, RelativeTo

Cell = Estimate | str | None


@dataclass(frozen=True)
class ExhibitRow:
    """One row: `measured` values by metric, unscaled; `problem` says why there are none."""

    group: str
    label: str
    measured: Mapping[str, Cell] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    num_requests: int = 0
    hypothetical: str = ""
    """Why its acceptance and its time are of unlike pairs of models: no claim is decided by it."""

    @property
    def num_prompts(self) -> int:
        """The prompts that an interval resamples, in the replicate with the most; repeated ones count once."""
        return max((cell.num_prompts for cell in self.measured.values() if isinstance(cell, Estimate)), default=0)

    @property
    def replicates(self) -> tuple[str, ...]:
        """The replicates (seeds) that the row's cells have."""
        known = [key for cell in self.measured.values() if isinstance(cell, Estimate) for key in cell.values]
        return tuple(dict.fromkeys(known))


@dataclass(frozen=True)
class RenderedExhibit:
    """An exhibit with its measured rows, followed by those that only the paper reports."""

    exhibit: Exhibit
    rows: Sequence[ExhibitRow]

    @classmethod
    def with_reported_rows(cls, exhibit: Exhibit, measured_rows: Iterable[ExhibitRow]) -> "RenderedExhibit":
        found = list(measured_rows)
        known = {(row.group, row.label) for row in found}
        absent = [ExhibitRow(*place, problem="not run") for place in exhibit.reported_rows() if place not in known]
        return cls(exhibit, [*found, *absent])

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(row.group for row in self.rows))

    def row(self, group: str, label: str) -> ExhibitRow | None:
        return next((row for row in self.rows if (row.group, row.label) == (group, label)), None)

    def reported_value(self, row: ExhibitRow, column: str) -> float | str | None:
        return self.exhibit.reported_rows().get((row.group, row.label), {}).get(column)

    def measured_cell(self, row: ExhibitRow, column: ExhibitColumn) -> Cell:
        """The cell in the column's unit, or relative to the cell that the column names; None if not known."""
        found = self._compared(row, column, column.comparisons)
        return found.scaled(column.scale) if isinstance(found, Estimate) else found

    def _compared(self, row: ExhibitRow, column: ExhibitColumn, steps: Sequence[RelativeTo]) -> Cell:
        """The row's metric after these comparisons, without a scale."""
        if not steps:
            return row.measured.get(column.metric_name)
        *earlier, last = steps
        own = self._compared(row, column, earlier)
        if not isinstance(own, Estimate):
            return own
        found = self.row(*last.place(row.group, row.label))
        if found is None:
            return None
        than = self.exhibit.column(last.column) if last.column else column
        other = self._compared(found, than, than.comparisons if last.column else earlier)
        if not isinstance(other, Estimate):
            return None
        return own.paired_ratio(other) if last.comparison == "ratio" else own.paired_difference(other)


_FIELD = re.compile(r"\{([^{}]+)\}")


def template_fields(*templates: str) -> list[str]:
    """The distinct names in braces."""
    return list(dict.fromkeys(name for template in templates for name in _FIELD.findall(template)))


def fill_template(template: str, choices: Mapping[str, str]) -> str:
    """The template with every name replaced by its choice; a dash for an unknown one."""
    return _FIELD.sub(lambda found: choices.get(found[1], "-"), template)


def parse_override(override: str) -> tuple[str, str]:
    """The name and value of `+name=value`, without Hydra's marks and quotes."""
    name, value = split_override(override)
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return name, value[1:-1] if quoted else value
