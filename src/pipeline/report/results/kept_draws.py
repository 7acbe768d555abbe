"""The kept draws of an experiment: `docs/results/EXPERIMENT.draws`, the share in which each claim holds, and how it was
drawn. `python -m pipeline results draws FOLDER` writes it from a finished sweep or run with draws of the clock.
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.artifacts import fingerprint
from pipeline.artifacts.manifest import read_manifest
from pipeline.config import sources
from pipeline.config.arguments import conf_dir
from pipeline.report.choices import split_override
from pipeline.report.context import command_line
from pipeline.report.exhibit.schema import Exhibit
from pipeline.report.exhibit.sweep import SweepExhibit
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import changes_result, split_masked
from pipeline.report.results.draws import row_of_job, shares_by_claim
from pipeline.report.results.kept import KeptResultError, finished_jobs, prepared_exhibit, unchanged_files
from pipeline.report.sweep_note import read_note
from serving.hardware import error_pools

SUFFIX = ".draws"


@dataclass(frozen=True)
class DrawnClaims:
    """The shares of the claims that one sweep, or one run, decided (`claim_key`), and how that was drawn.

    command     without what changes no result
    date        on which it was drawn
    revisions   of the code that drew; both are of the commit that kept it where neither was noted (until 2026-11-28)
    seeds       by key, of the jobs that name one; others have that of conf
    prompts     that one draw of a job served, and how many requests: each number that occurs
    pools       `chip modes software` -> identity of its pool of errors (`serving.hardware.error_pools`); empty: unknown
    """

    claims: Mapping[str, float]
    jobs: int = 1
    command: str = ""
    date: str = ""
    revisions: Sequence[str] = ()
    seeds: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prompts: Sequence[int] = ()
    requests: Sequence[int] = ()
    pools: Mapping[str, str] = field(default_factory=dict)

    @property
    def former_pools(self) -> list[str]:
        """The chips that are drawn from another pool today."""
        return [name for name, pool in self.pools.items() if _pool_of_today(name) not in (None, pool)]

    @property
    def is_former(self) -> bool:
        """True if it was drawn by another rule than today's, or by an unknown one."""
        return not self.pools or bool(self.former_pools)


@dataclass(frozen=True)
class KeptDraws:
    """The shares of the draws in which claims hold, by what drew them, and digests of what was drawn, by file.

    rows_of     by file, the rows whose jobs alone were composed of it; a file that is not named is of all rows
    """

    experiment: str
    draws: int
    files: Mapping[str, str]
    sweeps: Sequence[DrawnClaims]
    rows_of: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def claims(self) -> dict[str, float]:
        return {name: share for one in self.sweeps for name, share in one.claims.items()}

    def changes(self) -> list[str]:
        """What has changed in conf/ since: one short text a file."""
        return [str(change) for change in sources.changed_files(self.files)]

    def in_force(self) -> "KeptDraws":
        """Without the claims on rows whose configuration has changed since."""
        changed = [change.name for change in sources.changed_files(self.files)]
        if not changed:
            return self
        if not self.rows_of.keys() >= set(changed):
            return replace(self, sweeps=[])
        rows = {row for name in changed for row in self.rows_of[name]}
        exhibit = prepared_exhibit(self.experiment).exhibit
        lost = {claim for claim in self.claims if not rows.isdisjoint(rows_read(exhibit, claim))}
        return replace(self, sweeps=list(_without(self.sweeps, lost)))

    @property
    def former_claims(self) -> frozenset[str]:
        """The claims whose draws are of a former rule."""
        return frozenset(name for one in self.sweeps if one.is_former for name in one.claims)

    def rule_text(self) -> str:
        """Which chips are drawn otherwise today, or that this is unknown; empty if all are of today's rule."""
        chips = list(dict.fromkeys(chip for one in self.sweeps for chip in one.former_pools))
        texts = ["of an unknown rule"] if any(not one.pools for one in self.sweeps) else []
        return "; ".join([*texts, *([f"of a former rule for {', '.join(chips)}"] if chips else [])])


def _pool_of_today(name: str) -> str | None:
    """None for a chip or software that conf/ lacks."""
    try:
        chip, modes, software = error_pools.split_pool_key(name)
        node = (sources.read_named(f"hardware/chip/{chip}") or {})["software"][software]
    except (ValueError, KeyError):
        return None
    evidence = node.get("sources", {}).get("all", "")
    return _errors().pool(chip, software, modes, checked=error_pools.is_checked(evidence)).identity


@cache
def _errors() -> error_pools.ClockErrors:
    return error_pools.ClockErrors.read(conf_dir() / "hardware" / "measured" / "errors.json")


def read_draws(folder: Path) -> Iterator[KeptDraws]:
    """Every kept file of draws below `folder`. Raises KeptResultError."""
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        yield _read_kept(path)


def _read_kept(path: Path) -> KeptDraws:
    """Files before 2026-11-28 have no sweeps: all that is known of theirs is the claims and the number of jobs."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        claims, jobs = found.pop("claims", None), found.pop("jobs", 1)
        sweeps = [DrawnClaims(**one) for one in found.pop("sweeps", ())]
        return KeptDraws(**found, sweeps=sweeps if claims is None else [DrawnClaims(claims, jobs)])
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        raise KeptResultError(f"{path} has no draws: {problem}. Keep them again, or remove it.") from problem


def current_draws(folder: Path) -> dict[str, KeptDraws]:
    """By experiment; without the draws of a configuration that has changed since."""
    return {one.experiment: one for one in map(KeptDraws.in_force, read_draws(folder)) if one.sweeps}


def keep_draws(prepared: SweepExhibit, experiment: str, folder: Path, into: Path) -> Path:
    """Writes the shares of the claims that the jobs of this sweep, or the table of this run, decide; returns the path.

    The shares of other claims stay, if they are of as many draws and of an unchanged configuration: a long experiment
    is drawn one group at a time. Raises KeptResultError without any, and for a configuration that has changed since.
    """
    jobs = finished_jobs(folder)
    shares, num_draws = shares_by_claim(prepared, experiment, jobs)
    chosen = dict(map(split_override, jobs[0].overrides)).get("draws", "clock")
    files = unchanged_files(folder, jobs, f"+experiment={experiment} +draws={chosen}")
    path, before = into / f"{experiment}{SUFFIX}", None
    kept = KeptDraws(experiment, num_draws, files, [_drawn_claims(shares, folder, jobs)], _rows_of(prepared, jobs))
    if path.exists():
        with contextlib.suppress(KeptResultError):  # what cannot be read is replaced
            before = _read_kept(path).in_force()
    if before and before.sweeps and before.draws == num_draws:
        kept = _added(before, kept, shares)
    fingerprint.write_atomic(path, kept_text(kept))
    return path


def _added(before: KeptDraws, kept: KeptDraws, drawn: Collection[str]) -> KeptDraws:
    """`kept` with the earlier claims that were not drawn again."""
    rows_of = {**before.rows_of, **{name: rows for name, rows in kept.rows_of.items() if name not in before.files}}
    for name in before.rows_of.keys() & kept.files.keys():
        if name in kept.rows_of:
            rows_of[name] = sorted({*before.rows_of[name], *kept.rows_of[name]})
        else:
            del rows_of[name]
    sweeps = [*_without(before.sweeps, drawn), *kept.sweeps]
    return replace(kept, files={**before.files, **kept.files}, sweeps=sweeps, rows_of=rows_of)


def _rows_of(prepared: SweepExhibit, jobs: Sequence[JobResult]) -> dict[str, list[str]]:
    """By file, the rows that alone have it; nothing for the table of one run."""
    if prepared.exhibit.rows is None or jobs[0].number is None:
        return {}
    found: dict[str, set[str]] = {}
    rows = [row_of_job(prepared, job) for job in jobs]
    for job, row in zip(jobs, rows, strict=True):
        for name in job.files:
            found.setdefault(name, set()).add(row)
    every = set(rows)
    return {name: sorted(own) for name, own in sorted(found.items()) if own != every}


def rows_read(exhibit: Exhibit, claim: str) -> set[str]:
    """The rows that decide a claim, given by its key: its own, its baseline, and what its column compares with."""
    row, baseline, metric = claim.rsplit(" / ", 6)[1:4]
    return {row, baseline, *(step.row for step in exhibit.comparisons(exhibit.column(metric)))} - {""}


_LIST = re.compile(r"\[\n([^][{}]+)\n *\]")


def kept_text(kept: KeptDraws) -> str:
    """The text of a file of draws: JSON, lists of numbers and names on one line."""
    node = asdict(kept)
    node["sweeps"] = [{key: value for key, value in one.items() if value} for one in node["sweeps"]]
    text = json.dumps(node, indent=1, ensure_ascii=False)
    return (
        _LIST.sub(lambda found: "[" + ", ".join(line.strip(" ,") for line in found[1].splitlines()) + "]", text) + "\n"
    )


def _without(sweeps: Sequence[DrawnClaims], drawn: Collection[str]) -> Iterator[DrawnClaims]:
    """The sweeps with the claims that were not drawn again, if there are any."""
    for one in sweeps:
        if rest := {name: share for name, share in one.claims.items() if name not in drawn}:
            yield replace(one, claims=rest)


def _drawn_claims(shares: Mapping[str, float], folder: Path, jobs: Sequence[JobResult]) -> DrawnClaims:
    notes = [_read_note(job) for job in jobs]
    pools = {name: pool for one in notes for name, pool in one.get("pools", {}).items()}
    words = [split_override(word) for job in jobs for word in job.overrides]
    seeds = {
        key: sorted({value for name, value in words if name == key}, key=_by_number)
        for key in sorted({name for name, _ in words if name.split(".")[-1] == "seed"})
    }
    return DrawnClaims(
        shares, len(jobs), _command(folder, jobs), max(map(_date_built, jobs), default=""),
        sorted({one.revision for one in jobs if one.revision}), seeds, _numbers(notes, "prompts"),
        _numbers(notes, "requests"), pools if all(one.get("pools") for one in notes) else {},
    )  # fmt: skip


def _read_note(job: JobResult) -> dict[str, Any]:
    """What the stage that drew noted; nothing if it was of former code."""
    path = Path(str(job.artifact)) / error_pools.DRAWN_FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _numbers(notes: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    return sorted({one[name] for one in notes if one.get(name)})


def _by_number(seed: str) -> tuple[int, str]:
    return (int(seed), "") if seed.isdigit() else (0, seed)


def _date_built(job: JobResult) -> str:
    """The day on which the job's draws were built; empty if their record is gone."""
    found = read_manifest(Path(str(job.artifact)))
    return found.built[:10] if found else ""


def _command(folder: Path, jobs: Sequence[JobResult]) -> str:
    """As it was typed, without what changes no result; of a run, and of a sweep without a note, what all jobs chose."""
    note = read_note(folder)
    common = [word for word in jobs[0].overrides if all(word in one.overrides for one in jobs)]
    words = note.command if note and note.command else common
    return command_line([word for word in words if changes_result(split_masked(word)[0])])
