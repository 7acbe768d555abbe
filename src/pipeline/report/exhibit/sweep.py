"""The exhibit of a sweep: checked before its first job runs, shown after its last.

The labels of all rows follow from the sweep's parameters, so that a row that nobody will run is found at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.report.exhibit import measures
from pipeline.report.exhibit.jobs import Place, choices_of, lines, place
from pipeline.report.exhibit.render import Made, make
from pipeline.report.exhibit.rows import Shown, chosen, fields
from pipeline.report.exhibit.schema import Exhibit, Rows

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.report.comparison import Row

NODE = "exhibit"


@dataclass(frozen=True)
class Prepared:
    """A sweep's exhibit; `base` is what its jobs choose where they do not say. Raises ConfigError as `check` does."""

    exhibit: Exhibit
    base: Mapping[str, str] = field(default_factory=dict)

    def show(self, jobs: Sequence[Row], folder: Path) -> Made:
        """Writes exhibit.json, exhibit.csv and exhibit.png into the sweep's folder."""
        shown = Shown.of(self.exhibit, lines(self.exhibit, jobs, self.base))
        return make(shown, folder, folder / "exhibit.png", list(_notes(self.exhibit, jobs)))


def prepared(config: DictConfig) -> Prepared | None:
    """The exhibit that a multirun declares, checked; None where it declares none.

    Raises ConfigError for what its classes refuse, unknown metrics and choices, rows that share a label, and rows that
    `reported`, `claims` or a column name and that the experiment does not run.
    """
    exhibit = _built(config)
    if exhibit is None or (exhibit.rows is None and str(config.get("goal", "serve")) != "serve"):
        return None  # a stage shows it
    if exhibit.rows is None:
        raise ConfigError("exhibit.rows is missing: it says how a job gets its row, as in rows: {label: '{policy}'}.")
    _check_metrics(exhibit)
    written, asked = _jobs(config, []), _jobs(config, list(config.hydra.overrides.task))
    base = _base(config, exhibit, exhibit.rows, written + asked)
    places = [[place(exhibit.rows, choices_of(job, base)) for job in jobs] for jobs in (written, asked)]
    _check_places(places[1], exhibit.rows)
    if asked:
        _check_rows(exhibit, [one for own in places for one in own])
    return Prepared(exhibit, base)


def _built(config: DictConfig) -> Exhibit | None:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from pipeline.config.build import Schema, construct

    node = config.get(NODE)
    if node is None:
        return None
    try:
        data = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as problem:
        raise ConfigError(f"the exhibit cannot be resolved: {problem}") from problem
    schema = Schema(str, lambda _target, _name: None)
    built = construct(schema.coerce(data, Exhibit, NODE), None, NODE)
    assert isinstance(built, Exhibit)
    return built


def _check_metrics(exhibit: Exhibit) -> None:
    for column in (*exhibit.columns, *(exhibit.column(claim.metric) for claim in exhibit.claims)):
        if not measures.is_known(column.source):
            raise ConfigError(
                f"exhibit: there is no metric {column.source!r} ({column.name}). There are quality, "
                f"{', '.join(measures.names())}, and {measures.STAGE}NAME/METRIC of a stage's metrics.json."
            )


def _jobs(config: DictConfig, words: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of the sweep with these words on the command line; none where that is not known."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if not str(config.hydra.sweeper._target_).endswith("BasicSweeper"):
        return []
    params = [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]
    hydra = GlobalHydra.instance()
    parser = OverridesParser.create(hydra.config_loader() if hydra.is_initialized() else None)
    return BasicSweeper.split_arguments(parser.parse_overrides([*params, *words]), None)[0]


def _base(config: DictConfig, exhibit: Exhibit, rows: Rows, jobs: Sequence[Sequence[str]]) -> dict[str, str]:
    """What the templates name, as the configuration has it before any job changes it."""
    swept = {name: "-" for job in jobs for name, _ in map(chosen, job)}
    found: dict[str, str] = {}
    for name in _named(exhibit, rows):
        value = _value(config, name)
        if value is None and jobs and name not in swept:
            raise ConfigError(
                f"exhibit: nothing is chosen by the name {name!r}. The sweep chooses {', '.join(swept) or 'nothing'}; "
                "groups (policy, policy/waiting) and values (seed, policy.offload.budget) may be named as well."
            )
        if value is not None:
            found[name] = value
    return found


def _named(exhibit: Exhibit, rows: Rows) -> list[str]:
    """Every choice that a template or `over` names."""
    figure = exhibit.figure
    templates = (figure.x, figure.lines, figure.marks) if figure else ()
    drawn = [name for name in fields(*templates) if name not in ("row", "group")]
    return [*fields(rows.label, rows.group), *drawn, *([rows.over] if rows.over else [])]


def _value(config: DictConfig, name: str) -> str | None:
    from omegaconf import OmegaConf

    group = config.hydra.runtime.choices.get(name)
    if group is not None:
        return str(group)
    value: Any = OmegaConf.select(config, name) if "/" not in name else None
    return None if value is None or OmegaConf.is_config(value) else str(value)


def _check_places(places: Sequence[Place], rows: Rows) -> None:
    for number, one in enumerate(places):
        first = places.index(one)
        if first != number:
            raise ConfigError(
                f"exhibit.rows: jobs {first} and {number} are both the row {one.label!r}. Name what sets them apart in "
                f"label or group (label is {rows.label!r}), or as the choice to pool `over`."
            )


def _check_rows(exhibit: Exhibit, places: Sequence[Place]) -> None:
    rows, labels = {(one.group, one.label) for one in places}, {one.label for one in places}
    groups = {one.group for one in places}
    for group, label in exhibit.said():
        if (group, label) not in rows:
            raise _no_row("exhibit.reported", f"{group} / {label}" if group else label, rows)
    for where, label in _references(exhibit):
        if label not in labels:
            raise _no_row(where, label, rows)
    for claim in exhibit.claims:
        if claim.group and claim.group not in groups:
            raise ConfigError(f"exhibit.claims, {claim.says!r}: no group {claim.group!r}; there are {sorted(groups)}.")


def _references(exhibit: Exhibit) -> Iterator[tuple[str, str]]:
    for claim in exhibit.claims:
        yield from ((f"exhibit.claims, {claim.says!r}", row) for row in (claim.row, claim.than) if row is not None)
    for column in exhibit.columns:
        if column.relative:
            yield f"exhibit.columns, {column.name!r}", column.relative.to


def _no_row(where: str, label: str, rows: set[tuple[str, str]]) -> ConfigError:
    known = sorted(f"{group} / {row}" if group else row for group, row in rows)
    return ConfigError(f"{where}: no job is the row {label!r}. The rows are {', '.join(map(repr, known))}.")


def _notes(exhibit: Exhibit, jobs: Sequence[Row]) -> Iterator[str]:
    """Metrics of stages are known after the jobs alone."""
    known = {metric for job in jobs for metric in job.outcome.metrics}
    for column in exhibit.columns:
        if known and column.source not in known:
            own = ", ".join(sorted(metric for metric in known if metric.startswith(measures.STAGE)))
            yield f"no job has the metric {column.source}; those of stages are: {own or 'none'}"
