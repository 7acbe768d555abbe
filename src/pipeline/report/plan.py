"""What a run would build, and how long that takes: printed for one run, and as one table for a sweep.

plan.json: {overrides, stages: [{name, key, kind, explanation, cached, seconds, memory_nbytes, learned}]}
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts import fingerprint
from pipeline.artifacts.estimates import pair_parameters
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from pipeline.report.choices import differing_overrides
from pipeline.report.table import LabelledTexts, ReportPart, Table

PLAN_FILE = "plan.json"
_NOTES = frozenset({PLAN_FILE, "multirun.yaml"})
LONG_S = 1800.0
"""A plan that takes longer gets a warning."""


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a plan; the estimates are 0 for a cached one."""

    name: str
    key: str
    kind: str
    explanation: str
    cached: bool
    seconds: float = 0.0
    memory_nbytes: float = 0.0
    learned: bool = False

    @property
    def time_text(self) -> str:
        """`4 s` from an earlier build, `~4 s` from sizes, `-` for a cached stage."""
        return "-" if self.cached else f"{'' if self.learned else '~'}{format_minutes(self.seconds)}"


def plan_stages(stages: Mapping[str, Stage], kinds: Mapping[str, str], store: Store) -> list[PlannedStage]:
    """The stages with their estimates, in the order in which they run."""
    pair = pair_parameters(stages.values())
    return [_planned(stage, kinds[name], store, pair) for name, stage in stages.items()]


def _planned(stage: Stage, kind: str, store: Store, pair: float) -> PlannedStage:
    found = stage.name, stage.key, kind, store.explain(stage)
    if store.has(stage):
        return PlannedStage(*found, cached=True)
    cost = store.estimate(stage, pair)
    return PlannedStage(*found, False, cost.seconds, cost.memory_nbytes, cost.learned)


def describe_plan(stages: Sequence[PlannedStage]) -> str:
    """A line for what is to be built in all, and one for each stage: its kind and key, whether and why it would run."""
    if not stages:
        return "nothing to build: no stage is needed"
    width = max(len(stage.key) for stage in stages)
    lines = [f"  {one.kind:<8} {one.key:<{width}}  {one.time_text:>7}  {one.explanation}" for one in stages]
    return "\n".join([*_totals(stages), "stages, in the order in which they run:", *lines])


def _totals(stages: Iterable[PlannedStage]) -> list[str]:
    """`2 of 5 stages to build, about 3 min, with up to 1.2 GB of memory`, and a warning if that is long."""
    unique = {stage.key: stage for stage in stages}
    missing = [stage for stage in unique.values() if not stage.cached]
    if not missing:
        return [f"nothing to build: all {len(unique)} stages are there"]
    seconds, memory_nbytes = sum(one.seconds for one in missing), max(one.memory_nbytes for one in missing)
    guessed = "" if all(one.learned for one in missing) else " (~: from sizes, not from an earlier build)"
    lines = [
        f"{len(missing)} of {len(unique)} stages to build, about {format_minutes(seconds)}{guessed}, with up to "
        f"{memory_nbytes / 1e9:.1f} GB of memory"
    ]
    if seconds > LONG_S:
        longest = max(missing, key=lambda one: one.seconds)
        lines.append(
            f"warning: that is long; {longest.name} alone takes about {format_minutes(longest.seconds)}. Every stage "
            "survives Ctrl-C, and the same command goes on"
        )
    return lines


def format_minutes(seconds: float) -> str:
    """Seconds below two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def write_plan(folder: Path, overrides: Sequence[str], stages: Sequence[PlannedStage]) -> None:
    """For the table of the sweep, whose jobs may be planned in other processes."""
    content = {"overrides": list(overrides), "stages": [asdict(stage) for stage in stages]}
    fingerprint.write_atomic(folder / PLAN_FILE, json.dumps(content, indent=1) + "\n")


def remove_planned(folder: Path) -> None:
    """Removes the plans of a run or sweep, and its folder if all that is there is what Hydra notes.

    The folders of the day, and of all runs, go where they are empty then.
    """
    for path in folder.glob(f"*/{PLAN_FILE}"):
        path.unlink()
    files = (path for path in folder.rglob("*") if path.is_file())
    if not folder.is_dir() or any(path.name not in _NOTES and path.parent.name != ".hydra" for path in files):
        return
    shutil.rmtree(folder)
    for parent in list(folder.parents)[:2]:  # the day, and runs or sweeps
        if not parent.is_dir() or any(parent.iterdir()):
            return
        parent.rmdir()


def sweep_parts(folder: Path) -> list[ReportPart]:
    """What is printed of a planned sweep: a row for each job that could be planned, and what they build."""
    paths = sorted(folder.glob(f"*/{PLAN_FILE}"), key=lambda path: _number(path.parent))
    found = [_read(path) for path in paths]
    choices = differing_overrides([one["overrides"] for one in found])
    plans = [[PlannedStage(**stage) for stage in one["stages"]] for one in found]
    names = list(choices[0]) if choices else []
    rows = [
        (path.parent.name, *chosen.values(), *_cells(plan))
        for path, chosen, plan in zip(paths, choices, plans, strict=True)
    ]
    table = Table(("job", *names, "cached", "about"), tuple(rows), num_label_columns=1 + len(names))
    totals = _totals(stage for plan in plans for stage in plan)
    facts = [("in all", "; ".join(totals)), ("once", "a stage that several jobs need is built once and counted once")]
    built = _to_build([path.parent.name for path in paths], plans)
    return [table, LabelledTexts((*built, *facts))] if found else ["no job could be planned"]


def _cells(plan: Sequence[PlannedStage]) -> tuple[str, str]:
    missing = [stage for stage in plan if not stage.cached]
    seconds = format_minutes(sum(stage.seconds for stage in missing)) if missing else "-"
    return f"{len(plan) - len(missing)} of {len(plan)}", seconds


def _to_build(jobs: Sequence[str], plans: Sequence[Sequence[PlannedStage]]) -> list[tuple[str, str]]:
    """Each list of stages that jobs build, behind the jobs that build it: `0 to 2, 5: cloud_model, serve`."""
    builders: dict[str, list[int]] = {}
    for index, plan in enumerate(plans):
        builders.setdefault(", ".join(stage.name for stage in plan if not stage.cached), []).append(index)
    lines = [f"{_spans(jobs, indices)}: {names}" for names, indices in builders.items() if names]
    return [("" if number else "to build", line) for number, line in enumerate(lines)]


def _spans(jobs: Sequence[str], indices: Sequence[int]) -> str:
    """The jobs at these indices, those beside each other together: `0 to 2, 5`."""
    spans: list[list[int]] = []
    for index in indices:
        if spans and spans[-1][-1] == index - 1:
            spans[-1].append(index)
        else:
            spans.append([index])
    return ", ".join(jobs[one[0]] if len(one) == 1 else f"{jobs[one[0]]} to {jobs[one[-1]]}" for one in spans)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _number(folder: Path) -> tuple[bool, int, str]:
    return not folder.name.isdigit(), int(folder.name) if folder.name.isdigit() else 0, folder.name
