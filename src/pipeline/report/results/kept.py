"""The kept result of an experiment: `docs/results/EXPERIMENT.json`, small and committed.

It has the exhibit's rows, intervals and claims, the seeds, the command, the revision and the date, and digests of the
configuration that it was composed of. `python -m pipeline results keep FOLDER` writes it from a finished sweep or run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import fingerprint
from pipeline.config import sources
from pipeline.config.arguments import conf_dir
from pipeline.errors import UserError
from pipeline.report import job_result
from pipeline.report.choices import split_override
from pipeline.report.comparison import ComparisonRow
from pipeline.report.exhibit.jobs import RowKey, choices_of, row_key
from pipeline.report.exhibit.rows import parse_override
from pipeline.report.exhibit.sweep import SweepExhibit, build_exhibit, job_overrides, prepare_exhibit
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import changes_result

if TYPE_CHECKING:
    from omegaconf import DictConfig

Choices = frozenset[tuple[str, str]]
"""What a job chooses of what its experiment sweeps: keys and values."""
FORMAT = 1
EXPERIMENT = "experiment"
TRIAL = "trial"
"""Key of a trial's number, which a search adds to its jobs."""
LATER = "declared_later"
"""True at a claim that was declared when an earlier result of its experiment was known."""
_ASKED = ("group", "row", "baseline", "metric", "relation", "margin", "value")
_SIGNIFICANT_DIGITS = 6
_EXHIBIT_FILE = "exhibit.json"


class KeptResultError(UserError):
    """A folder has no result that can be kept, or a kept file cannot be read."""


@dataclass(frozen=True)
class KeptResult:
    """`exhibit` is what exhibit.json says; `files` are digests by name below conf/."""

    experiment: str
    exhibit: Mapping[str, Any]
    files: Mapping[str, str]
    exhibit_digest: str
    revisions: tuple[str, ...]
    date: str
    num_jobs: int
    format: int = FORMAT

    @property
    def command(self) -> str:
        return f"python -m pipeline +experiment={self.experiment}"

    def changes(self) -> list[str]:
        """What has changed in conf/ since: one short text a file."""
        found = [str(change) for change in sources.changed_files(self.files)]
        if not found and sources.exhibit_digest(list(self.files)) != self.exhibit_digest:
            found = ["the exhibit's columns, rows or claims have changed"]
        return found

    def with_later_claims(self, before: "KeptResult | None") -> "KeptResult":
        """The result with the mark LATER on each claim that an earlier result of the experiment does not ask."""
        if before is None:
            return self
        known = {_asked(claim): claim.get(LATER, False) for claim in before.exhibit.get("claims", ())}
        claims = [
            {**claim, LATER: True} if known.get(_asked(claim), True) else claim
            for claim in self.exhibit.get("claims", ())
        ]
        return replace(self, exhibit={**self.exhibit, "claims": claims})

    def write(self, folder: Path) -> Path:
        """One row, claim or file a line. Returns the path."""
        path = result_path(folder, self.experiment)
        fingerprint.write_atomic(path, _lines(_rounded(asdict(self))) + "\n")
        return path


def _asked(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """What a claim asks in its group, without its words."""
    return tuple(str(_rounded(claim.get(key)) or "") for key in _ASKED)


def results_folder() -> Path:
    """docs/results of the checkout; in a wheel, the copy that it brings, which is only read."""
    return conf_dir().parent / "docs" / "results"


def result_path(folder: Path, experiment: str) -> Path:
    return folder / f"{experiment}.json"


def read_results(folder: Path) -> Iterator[KeptResult]:
    """Every kept result below `folder`, by the name of its experiment. Raises KeptResultError."""
    return map(_read_result, sorted(folder.rglob("*.json")))


def _read_result(path: Path) -> KeptResult:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        result = KeptResult(**found | {"revisions": tuple(found["revisions"])})
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise KeptResultError(f"{path} is no kept result: {problem}. Keep it again, or remove it.") from problem
    if result.format != FORMAT:
        raise KeptResultError(f"{path} has format {result.format}, this code reads {FORMAT}. Keep it again.")
    return result


def keep(folder: Path, into: Path) -> Path:
    """Writes the kept result of a finished sweep or run below `into`; returns its path.

    The exhibit of a sweep is made anew from its jobs, with the claims and columns of today. Raises KeptResultError for
    a folder without a complete experiment, a narrowed one, and a configuration that has changed since.
    """
    jobs = finished_jobs(folder)
    experiment = experiment_of(folder, jobs)
    _check_overrides(folder, experiment, jobs)
    files = unchanged_files(folder, jobs, f"+experiment={experiment}")
    exhibit = _sweep_exhibit(folder, experiment, jobs) if jobs[0].number is not None else _run_exhibit(folder, jobs[0])
    revisions = tuple(sorted({one.revision for one in jobs if one.revision}))
    date = datetime.fromtimestamp(max(path.stat().st_mtime for path in folder.rglob(job_result.JOB_FILE)), UTC)
    digest = sources.exhibit_digest(list(files))
    result = KeptResult(experiment, exhibit, files, digest, revisions, f"{date:%Y-%m-%d}", len(jobs))
    before = result_path(into, experiment)
    return result.with_later_claims(_read_result(before) if before.exists() else None).write(into)


def prepared_exhibit(experiment: str) -> SweepExhibit:
    """The exhibit of a sweep as conf/ declares it. Raises KeptResultError if it declares none."""
    with _composed(experiment) as config:
        exhibit = prepare_exhibit(config)
    if exhibit is None:
        raise KeptResultError(f"+experiment={experiment} is no sweep with an exhibit.")
    return exhibit


def written_places(experiment: str) -> set[RowKey]:
    """The groups, rows and seeds of a sweep as conf/ writes it; none for a search, a run and rows that tables name."""
    with _composed(experiment) as config:
        found, words = prepare_exhibit(config), job_overrides(config, [])
    if found is None or found.exhibit.rows is None or found.exhibit.rows.from_table:
        return set()
    return {row_key(found.exhibit.rows, choices_of(job, found.base_choices)) for job in words}


def drawn_exhibit(experiment: str) -> SweepExhibit:
    """The exhibit of a sweep or of one run as conf/ declares it. Raises KeptResultError if it declares none."""
    with _composed(experiment) as config:
        if found := prepare_exhibit(config):
            return found
        own = build_exhibit(config)
    if own is None:
        raise KeptResultError(f"+experiment={experiment} has no exhibit.")
    return SweepExhibit(own)


@contextmanager
def _composed(experiment: str) -> "Iterator[DictConfig]":
    """The configuration of the experiment as it is written, with Hydra's own node."""
    from hydra import compose, initialize_config_dir

    from pipeline.config.compose import prepare_hydra
    from pipeline.config.merged_groups import keep_merged_groups

    prepare_hydra()
    keep_merged_groups()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield compose("config", [f"+experiment={experiment}"], return_hydra_config=True)


def finished_jobs(folder: Path) -> list[JobResult]:
    """The jobs of a sweep's or a run's folder. Raises KeptResultError without any, or if one has no result."""
    folders = [folder, *(one for one in sorted(folder.iterdir()) if one.is_dir())] if folder.is_dir() else []
    found = [
        result for one in folders if (one / job_result.JOB_FILE).exists() and (result := job_result.read_result(one))
    ]
    if not found:
        raise KeptResultError(
            f"{folder} is no folder of a finished sweep or run: it has no {job_result.JOB_FILE}. They are "
            "OUTPUTS/sweeps/DATE/TIME and OUTPUTS/runs/DATE/TIME."
        )
    found.sort(key=lambda one: one.number or 0)
    missing = [one for one in found if one.status != "complete"]
    if missing:
        if missing[0].number is None:
            raise KeptResultError(f"{folder}: the run ended without a result ({missing[0].status}).")
        numbers = ", ".join(str(one.number) for one in missing)
        raise KeptResultError(f"{folder}: {len(missing)} of {len(found)} jobs have no result ({numbers}).")
    return found


def experiment_of(folder: Path, jobs: Sequence[JobResult]) -> str:
    """The experiment that all jobs are of. Raises KeptResultError if there is none, or several."""
    names = {dict(map(split_override, one.overrides)).get(EXPERIMENT) for one in jobs}
    name = next(iter(names))
    if len(names) != 1 or name is None:
        raise KeptResultError(f"{folder} is no experiment's: its jobs name {sorted(map(str, names))} as +experiment.")
    return name


def _check_overrides(folder: Path, experiment: str, jobs: Sequence[JobResult]) -> None:
    """Raises KeptResultError unless the jobs are those of the experiment as it is written."""
    written, swept = _written_jobs(experiment)
    chosen = {key for one in jobs for key, _ in map(split_override, one.overrides) if changes_result(key)}
    foreign = sorted(chosen - swept - {EXPERIMENT, TRIAL})
    if foreign:
        raise KeptResultError(
            f"{folder} differs from +experiment={experiment} by {', '.join(foreign)}. A kept result is of the "
            "experiment as it is written: run it without these overrides, or write them into conf/experiment."
        )
    if written:
        _check_choices(folder, experiment, written, {_choices(one.overrides, swept): one.number for one in jobs})


def _check_choices(folder: Path, experiment: str, written: Set[Choices], done: Mapping[Choices, int | None]) -> None:
    """`done` has the number of the job with these choices. Raises KeptResultError for other or missing ones."""
    for choices, number in done.items():
        if choices not in written:
            values = ", ".join(f"{key}={value}" for key, value in sorted(choices)) or "nothing of what is swept"
            raise KeptResultError(
                f"{folder}: job {number} chooses {values}, and no job of +experiment={experiment} does as it is "
                "written. Run it without overrides, or write these values into conf/experiment."
            )
    if len(done) < len(written):
        raise KeptResultError(f"{folder} has {len(done)} of the {len(written)} jobs of +experiment={experiment}.")


def _written_jobs(experiment: str) -> tuple[set[Choices], set[str]]:
    """The choices of each job of the experiment, none for a search, and the keys that it sweeps."""
    with _composed(experiment) as config:
        swept = {str(key).lstrip("+") for key in config.hydra.sweeper.get("params") or {}}
        return {_choices(one, swept) for one in job_overrides(config, [])}, swept


def _choices(overrides: Sequence[str], keys: Set[str]) -> Choices:
    return frozenset((key, value) for key, value in map(parse_override, overrides) if key in keys)


def unchanged_files(folder: Path, jobs: Sequence[JobResult], words: str) -> dict[str, str]:
    """The files that the jobs were composed of; `words` of the command made them.

    Raises KeptResultError if one says something else now.
    """
    found: dict[str, str] = {}
    for one in jobs:
        for name, digest in one.files.items():
            if found.setdefault(name, digest) != digest:
                raise KeptResultError(f"{folder}: conf/{name}.yaml changed between its jobs. Run it again.")
    changed = [str(change) for change in sources.changed_files(found)]
    if changed or not found:
        reason = "; ".join(changed) or "it does not say of which files it was composed"
        raise KeptResultError(f"{folder}: {reason}. Run it again: `python -m pipeline {words}`.")
    return found


def _sweep_exhibit(folder: Path, experiment: str, jobs: Sequence[JobResult]) -> Mapping[str, Any]:
    exhibit = prepared_exhibit(experiment)
    exhibit.write([ComparisonRow(one, {}) for one in jobs], folder)
    return _read_exhibit(folder)


def _run_exhibit(folder: Path, job: JobResult) -> Mapping[str, Any]:
    if not job.artifact:
        raise KeptResultError(f"{folder}: the job ended without an artifact.")
    return _read_exhibit(Path(job.artifact))


def _read_exhibit(folder: Path) -> Mapping[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / _EXHIBIT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise KeptResultError(f"{folder} has no readable {_EXHIBIT_FILE}: {problem}.") from problem
    return found


def _rounded(node: Any) -> Any:
    """Numbers with six digits that count, and nothing that is empty."""
    if isinstance(node, Mapping):
        return {key: _rounded(value) for key, value in node.items() if value not in (None, "", {}, [])}
    if isinstance(node, list | tuple):
        return [_rounded(value) for value in node]
    return float(f"{node:.{_SIGNIFICANT_DIGITS}g}") if isinstance(node, float) else node


def _lines(node: Mapping[str, Any]) -> str:
    """JSON with a line for each element of the lists and mappings of the first two levels."""
    parts = [f"{json.dumps(key)}: {_block(value, 1)}" for key, value in node.items()]
    return "{\n " + ",\n ".join(parts) + "\n}"


def _block(value: Any, depth: int) -> str:
    indent = " " * (depth + 1)
    if isinstance(value, dict) and depth < 2:
        inner = [
            f"{indent}{json.dumps(key, ensure_ascii=False)}: {_block(own, depth + 1)}" for key, own in value.items()
        ]
        return "{\n" + ",\n".join(inner) + f"\n{' ' * depth}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        inner = [f"{indent}{json.dumps(own, ensure_ascii=False)}" for own in value]
        return "[\n" + ",\n".join(inner) + f"\n{' ' * depth}]"
    return json.dumps(value, ensure_ascii=False)
