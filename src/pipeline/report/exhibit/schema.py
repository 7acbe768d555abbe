"""The declaration of an exhibit: columns, rows, reported values, a figure, claims, and deviations from the paper.

    exhibit:
      _target_: pipeline.report.exhibit.Exhibit
      title: ...
      columns: [{name: "TBT, ms", metric: latency/tbt_s/mean, scale: 1000}]
      rows: {label: "{policy}", group: "{model}", pool_over: training.seed}

`{name}` in a template stands for a choice: `{policy}`, `{policy.offload.budget}`, `{policy/lookahead}`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.report.summary import QUALITY

Relation = Literal["above", "below", "equal", "at_most", "at_least"]


@dataclass(frozen=True)
class RelativeTo:
    """Another cell that a value is compared with: the value over the cell's, or minus it. Neither has its `scale` yet.

    row       the cell is of the row with this label; by default of the same row
    groups    group -> the group of the cell; by default the same group. Rows of a group that is not named have no value
    column    the cell is of this earlier column; by default of the same column
    then      compares the result with the results of another row, group or column
    """

    row: str = ""
    comparison: Literal["ratio", "difference"] = "ratio"
    groups: Mapping[str, str] = field(default_factory=dict)
    column: str = ""
    then: "RelativeTo | None" = None

    def __post_init__(self) -> None:
        if not (self.row or self.groups or self.column):
            raise ValueError("exhibit.columns: `relative` needs a `row`, `groups` or a `column` to compare with")

    def place(self, group: str, row: str) -> tuple[str, str]:
        """The (group, row) of the cell that a row is compared with; no group's if `groups` does not name its own."""
        return (self.groups.get(group, "") if self.groups else group), self.row or row


@dataclass(frozen=True)
class ExhibitColumn:
    """One number of each row: `metric` (by default `name`) times `scale`, which makes its unit.

    metric      a key of `serving.metrics.definitions`, or `quality`, short for its mean
    relative    show the comparison with another cell instead
    """

    name: str
    metric: str = ""
    scale: float = 1.0
    relative: RelativeTo | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError(f"exhibit.columns: the column of metric {self.metric!r} has no name; give it one")
        if self.scale == 0:
            raise ValueError(
                f"exhibit.columns: the scale of {self.name!r} is 0; it multiplies the metric, as 1000 for ms"
            )

    @property
    def metric_name(self) -> str:
        """The metric's full name."""
        return full_metric_name(self.metric or self.name)

    @property
    def comparisons(self) -> tuple[RelativeTo, ...]:
        """Those that `relative` makes, in their order."""
        found, step = [], self.relative
        while step:
            found.append(step)
            step = step.then
        return tuple(found)


@dataclass(frozen=True)
class RowTemplate:
    """Templates of a row's label and group; jobs that differ only in the choice `pool_over` (a seed) are one row.

    from_table        each job's goal is a stage that writes rows.json: its rows are the exhibit's. Templates may name
                      the table's own labels, `{row}` and `{group}`; by default they are the labels
    text_reference    label of a row; `text/rouge_1`, `text/equal` and `text/same_prefix` compare the texts of the other
                      rows of its group with its own, prompt by prompt
    """

    label: str = ""
    group: str = ""
    pool_over: str = ""
    text_reference: str = ""
    from_table: bool = False

    def __post_init__(self) -> None:
        if self.from_table and self.text_reference:
            raise ValueError("exhibit.rows.from_table has rows without texts; leave text_reference out")
        if not self.from_table and not self.label.strip():
            raise ValueError("exhibit.rows.label is empty; write a template over the choices, such as '{policy}'")
        if "{" in self.pool_over:
            raise ValueError(
                f"exhibit.rows.pool_over is {self.pool_over!r}; it names one choice, without braces: training.seed"
            )


@dataclass(frozen=True)
class ExhibitFigure:
    """A panel for each `y` (names of columns) against `x` (a column, or a template), a line for each of `series`.

    Values of `x` that are not all numbers are categories in the rows' order. Templates may name `{row}` and `{group}`,
    the labels of a row and its group; by default every group is a line. `point_labels` is a template, too.
    """

    x: str
    y: str | tuple[str, ...]
    series: str = "{group}"
    point_labels: str = ""
    log_x: bool = False
    log_y: bool = False

    @property
    def panels(self) -> tuple[str, ...]:
        return (self.y,) if isinstance(self.y, str) else self.y


@dataclass(frozen=True)
class ExhibitMap:
    """A figure of coloured cells: `x` and `y` are columns of numbers, and each of `colours` is a column of names, which
    has a figure of its own.

    A cell's name may join several by " = ", which tie: the first has the cell's colour, the next a square within it.
    `panel_row` and `panel_column` are columns whose values divide the figure into panels.
    """

    x: str
    y: str
    colours: tuple[str, ...]
    panel_row: str
    panel_column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.x, self.y, *self.colours, self.panel_row, self.panel_column)


@dataclass(frozen=True)
class ExhibitOrder:
    """Asks for the best row of each group by `column`, and between which groups, in their order, another becomes it.

    Rows without a number in the column do not take part.
    """

    column: str
    better: Literal["lower", "higher"] = "lower"


@dataclass(frozen=True)
class Claim:
    """A statement that the numbers can support: `row` against the row `baseline` of its group, or against a `value`.

    metric    a column's name (in its unit, and relative if the column is), or a metric's
    relation  above | below: by more than `margin`; at_most | at_least: not worse by more than it; equal: within it
    group     the group of the claim; by default each
    reported  what the paper says of it, as short text: the claim then stands in docs/claims.md
    headline  True for what the paper's abstract or conclusion claims: it stands first there
    """

    statement: str
    row: str
    metric: str
    relation: Relation
    baseline: str | None = None
    value: float | None = None
    margin: float = 0.0
    group: str = ""
    reported: str = ""
    headline: bool = False

    def __post_init__(self) -> None:
        if (self.baseline is None) == (self.value is None):
            raise ValueError(
                f"exhibit.claims: {self.statement!r} needs one of `baseline` (a row) and `value` (a number)"
            )
        if self.margin < 0:
            raise ValueError(f"exhibit.claims: the margin of {self.statement!r} is {self.margin}; give 0 or more")
        if self.relation == "equal" and self.margin == 0:
            raise ValueError(f"exhibit.claims: {self.statement!r} wants `equal`; say within which `margin`")


@dataclass(frozen=True)
class Exhibit:
    """One table or figure. Raises ValueError for unknown column names and a malformed `reported`.

    rows        needed for the exhibit of a sweep; a stage brings its own rows
    reported    row label -> column name -> number or short text, or group -> that; a dash stands for the rest
    deviations  sentences on what differs from the paper
    assumptions the two or three of them that decide the claims, as short texts
    unmeasured_batches  groups that rest on batches of a chip of which none was measured: their claims are undecided
    """

    title: str
    columns: tuple[ExhibitColumn, ...]
    rows: RowTemplate | None = None
    reported: Mapping[str, Any] = field(default_factory=dict)
    figure: ExhibitFigure | None = None
    order: ExhibitOrder | None = None
    claims: tuple[Claim, ...] = ()
    deviations: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    unmeasured_batches: tuple[str, ...] = ()
    map: ExhibitMap | None = field(default=None, metadata={"omitted_at_default": True})

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"exhibit.columns are {names}; give one at least, and each a name of its own")
        for place, name in self._referenced_columns():
            if name not in names:
                raise ValueError(f"{place}: there is no column {name!r}; there are {', '.join(map(repr, names))}")
        for number, column in enumerate(self.columns):
            for step in column.comparisons:
                if step.column and step.column not in names[:number]:
                    raise ValueError(
                        f"exhibit.columns: {column.name!r} is compared with {step.column!r}; put it behind that column"
                    )

    def column(self, metric: str) -> ExhibitColumn:
        """The column of this name, or one for a metric without a column."""
        return next((column for column in self.columns if column.name == metric), ExhibitColumn(metric))

    def comparisons(self, column: ExhibitColumn) -> Iterator[RelativeTo]:
        """Yields the comparisons of a column, and of the columns that it is compared with."""
        for step in column.comparisons:
            yield step
            if step.column:
                yield from self.comparisons(self.column(step.column))

    def reported_rows(self) -> dict[tuple[str, str], Mapping[str, float | str]]:
        """The reported values by (group, row); the group is "" without groups."""
        grouped = _is_grouped(self.reported)
        groups = self.reported if grouped else {"": self.reported}
        return {(group, row): values for group, rows in groups.items() for row, values in rows.items()}

    def _referenced_columns(self) -> Iterator[tuple[str, str]]:
        for (_, row), values in self.reported_rows().items():
            if not isinstance(values, Mapping):
                raise ValueError(  # noqa: TRY004 - what a person wrote
                    f"exhibit.reported: {row!r} is {values!r}; column names with their values are wanted"
                )
            yield from ((f"exhibit.reported of {row!r}", name) for name in values)
        for column in self.columns:
            yield from ((f"exhibit.columns, {column.name!r}", one.column) for one in column.comparisons if one.column)
        if self.order:
            yield "exhibit.order", self.order.column
        if self.figure:
            yield from (("exhibit.figure.y", name) for name in self.figure.panels)
            axes = {"x": self.figure.x, "series": self.figure.series}
            yield from ((f"exhibit.figure.{axis}", name) for axis, name in axes.items() if "{" not in name)
        if self.map:
            yield from (("exhibit.map", name) for name in self.map.columns)


def full_metric_name(metric: str) -> str:
    """`quality` is short for its mean."""
    return QUALITY if metric == "quality" else metric


def _is_grouped(reported: Mapping[str, Any]) -> bool:
    inner = [value for rows in reported.values() if isinstance(rows, Mapping) for value in rows.values()]
    some, every = (test(isinstance(value, Mapping) for value in inner) for test in (any, all))
    if some and not every:
        raise ValueError(
            "exhibit.reported has groups in some places only; write row -> column, or group -> row -> column"
        )
    return some
