"""The exhibit of a sweep: checked before the first job, shown after the last.

The labels of all rows follow from the sweep's parameters, so a row without a job is found before the first job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.compose import written_overrides
from pipeline.errors import ConfigError
from pipeline.report.choices import check_baseline
from pipeline.report.exhibit.jobs import RowKey, choices_of, lost_jobs, row_key, rows_of_jobs
from pipeline.report.exhibit.render import ExhibitOutput, write_exhibit
from pipeline.report.exhibit.rows import ExhibitRow, RenderedExhibit, parse_override, template_fields
from pipeline.report.exhibit.schema import Exhibit, RowTemplate
from pipeline.report.exhibit.stage import missing_metric_notes
from pipeline.report.job_result import transport_checks
from pipeline.report.text_reference import TEXT_METRICS
from serving.metrics import definitions

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.report.comparison import ComparisonRow

CONFIG_KEY = "exhibit"


@dataclass(frozen=True)
class SweepExhibit:
    """A sweep's exhibit; `base_choices` are the choices of the configuration that a job may override.

    num_jobs    of the experiment as it is written
    """

    exhibit: Exhibit
    base_choices: Mapping[str, str] = field(default_factory=dict)
    num_jobs: int = 0

    def write(self, jobs: Sequence[ComparisonRow], folder: Path) -> ExhibitOutput:
        """Writes exhibit.json, exhibit.csv and exhibit.png into the sweep's folder."""
        rows = rows_of_jobs(self.exhibit, jobs, self.base_choices)
        shown = RenderedExhibit.with_reported_rows(self.exhibit, rows)
        notes = [*transport_checks(job.result for job in jobs), *self._missing_notes(jobs, rows)]
        return write_exhibit(shown, folder, folder / "exhibit.png", notes)

    def shown(self, jobs: Sequence[ComparisonRow]) -> RenderedExhibit:
        """The exhibit with the rows of the jobs; writes nothing."""
        return RenderedExhibit.with_reported_rows(self.exhibit, rows_of_jobs(self.exhibit, jobs, self.base_choices))

    def _missing_notes(self, jobs: Sequence[ComparisonRow], rows: Sequence[ExhibitRow]) -> Iterator[str]:
        """Yields a note for each column without a value: no job has its metric. For an exhibit of tables, a further
        note names the failed jobs.

        Metrics of stages are known only after the jobs; a row of a table belongs to several jobs.
        """
        if self.exhibit.rows and self.exhibit.rows.from_table:
            lost = lost_jobs(jobs)
            if lost and any(row.measured for row in rows):
                yield lost
            yield from missing_metric_notes(self.exhibit, rows)
            return
        known = {metric for job in jobs for metric in job.result.metrics}
        for column in self.exhibit.columns:
            if known and column.metric_name not in known and not column.metric_name.startswith(TEXT_METRICS):
                own = ", ".join(sorted(metric for metric in known if metric.startswith("stage/")))
                yield f"no job has the metric {column.metric_name}; those of stages are: {own or 'none'}"


def prepare_exhibit(config: DictConfig) -> SweepExhibit | None:
    """The checked exhibit of a multirun; None if it declares none, or one that a stage shows.

    Raises ConfigError for invalid fields, unknown metrics and choices, rows that share a label, and rows that
    `reported`, `claims` or a column name although no job of the experiment is one.
    """
    exhibit = build_exhibit(config)
    if exhibit is None or (exhibit.rows is None and str(config.get("goal", "serve")) != "serve"):
        return None
    if exhibit.rows is None:
        raise ConfigError("exhibit.rows is missing: it says how a job gets its row, as in rows: {label: '{policy}'}.")
    if not exhibit.rows.from_table:
        _check_metrics(exhibit)
    written, asked = job_overrides(config, []), job_overrides(config, written_overrides(config.hydra))
    base = _base_choices(config, exhibit, exhibit.rows, written + asked)
    places = [[row_key(exhibit.rows, choices_of(job, base)) for job in jobs] for jobs in (written, asked)]
    if not _named_by_tables(exhibit.rows):
        _check_unique_rows(places[1], exhibit.rows)
    if asked and not exhibit.rows.from_table:
        _check_rows(exhibit, [one for own in places for one in own])
    return SweepExhibit(exhibit, base, len(written))


def prepare_baseline(config: DictConfig) -> str | None:
    """The baseline of a multirun's comparison, if one is named. Raises ConfigError if no job would be it."""
    name = config.get("baseline")
    if name is None:
        return None
    if jobs := job_overrides(config, written_overrides(config.hydra)):
        check_baseline(str(name), jobs)
    return str(name)


def build_exhibit(config: DictConfig) -> Exhibit | None:
    """The exhibit that a configuration declares, if it declares one. Raises ConfigError for invalid fields."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from pipeline.config.build import ConfigSchema, construct

    node = config.get(CONFIG_KEY)
    if node is None:
        return None
    try:
        data = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as problem:
        raise ConfigError(f"the exhibit cannot be resolved: {problem}") from problem
    schema = ConfigSchema(str, lambda _target, _name: None)
    built = construct(schema.coerce(data, Exhibit, CONFIG_KEY), None, CONFIG_KEY)
    assert isinstance(built, Exhibit)
    return built


def _check_metrics(exhibit: Exhibit) -> None:
    for column in (*exhibit.columns, *(exhibit.column(claim.metric) for claim in exhibit.claims)):
        if definitions.find(column.metric_name) is None:
            raise ConfigError(
                f"exhibit: there is no metric {column.metric_name!r} ({column.name}). There are quality and "
                f"{', '.join(definitions.all_keys())}. `python -m pipeline show metrics` explains them."
            )
        if column.metric_name.startswith(TEXT_METRICS) and not (exhibit.rows and exhibit.rows.text_reference):
            raise ConfigError(
                f"exhibit: {column.metric_name} ({column.name}) compares with the texts of another row; name it in "
                "exhibit.rows.text_reference."
            )


def job_overrides(config: DictConfig, words: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of the sweep with these words on the command line; empty for a search."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if not str(config.hydra.sweeper._target_).endswith("BasicSweeper"):
        return []
    params = [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]
    hydra = GlobalHydra.instance()
    parser = OverridesParser.create(hydra.config_loader() if hydra.is_initialized() else None)
    return BasicSweeper.split_arguments(parser.parse_overrides([*params, *words]), None)[0]


def _base_choices(
    config: DictConfig, exhibit: Exhibit, rows: RowTemplate, jobs: Sequence[Sequence[str]]
) -> dict[str, str]:
    """The choices that the templates name, as the configuration has them before any job changes them."""
    swept = {name: "-" for job in jobs for name, _ in map(parse_override, job)}
    found: dict[str, str] = {}
    for name in _template_names(exhibit, rows):
        value = _configured_value(config, name)
        if value is None and jobs and name not in swept:
            raise ConfigError(
                f"exhibit: nothing is chosen by the name {name!r}. The sweep chooses {', '.join(swept) or 'nothing'}; "
                "groups (policy, policy/lookahead) and values (seed, policy.offload.budget) may be named as well."
            )
        if value is not None:
            found[name] = value
    return found


def _template_names(exhibit: Exhibit, rows: RowTemplate) -> list[str]:
    """Every choice that a template or `pool_over` names."""
    figure = exhibit.figure
    templates = (figure.x, figure.series, figure.point_labels) if figure else ()
    drawn = [name for name in template_fields(*templates) if name not in ("row", "group")]
    own = ("row", "group") if rows.from_table else ()
    named = [name for name in template_fields(rows.label, rows.group) if name not in own]
    return [*named, *drawn, *([rows.pool_over] if rows.pool_over else [])]


def _configured_value(config: DictConfig, name: str) -> str | None:
    from omegaconf import OmegaConf

    group = config.hydra.runtime.choices.get(name)
    if group is not None:
        return str(group)
    value: Any = OmegaConf.select(config, name) if "/" not in name else None
    return None if value is None or OmegaConf.is_config(value) else str(value)


def _named_by_tables(rows: RowTemplate) -> bool:
    """True if labels have parts that are known only after the jobs."""
    return rows.from_table and not {"row", "group"}.isdisjoint(template_fields(rows.label, rows.group))


def _check_unique_rows(places: Sequence[RowKey], rows: RowTemplate) -> None:
    for number, one in enumerate(places):
        first = places.index(one)
        if first != number:
            raise ConfigError(
                f"exhibit.rows: jobs {first} and {number} are both the row {one.label!r}. Name what sets them apart in "
                f"label or group (label is {rows.label!r}), or as the choice in `pool_over`."
            )


def _check_rows(exhibit: Exhibit, places: Sequence[RowKey]) -> None:
    rows, labels = {(one.group, one.label) for one in places}, {one.label for one in places}
    groups = {one.group for one in places}
    for group, label in exhibit.reported_rows():
        if (group, label) not in rows:
            raise _unknown_row_error("exhibit.reported", f"{group} / {label}" if group else label, rows)
    for where, label in _referenced_rows(exhibit):
        if label not in labels:
            raise _unknown_row_error(where, label, rows)
    for column in exhibit.columns:
        for group in (one for step in column.comparisons for pair in step.groups.items() for one in pair):
            if group not in groups:
                raise ConfigError(f"exhibit.columns, {column.name!r}: no group {group!r}; there are {sorted(groups)}.")
    for claim in exhibit.claims:
        if claim.group and claim.group not in groups:
            raise ConfigError(
                f"exhibit.claims, {claim.statement!r}: no group {claim.group!r}; there are {sorted(groups)}."
            )


def _referenced_rows(exhibit: Exhibit) -> Iterator[tuple[str, str]]:
    if exhibit.rows and exhibit.rows.text_reference:
        yield "exhibit.rows.text_reference", exhibit.rows.text_reference
    for claim in exhibit.claims:
        yield from (
            (f"exhibit.claims, {claim.statement!r}", row) for row in (claim.row, claim.baseline) if row is not None
        )
    for column in exhibit.columns:
        yield from ((f"exhibit.columns, {column.name!r}", one.row) for one in column.comparisons if one.row)


def _unknown_row_error(where: str, label: str, rows: set[tuple[str, str]]) -> ConfigError:
    known = sorted(f"{group} / {row}" if group else row for group, row in rows)
    return ConfigError(f"{where}: no job is the row {label!r}. The rows are {', '.join(map(repr, known))}.")
