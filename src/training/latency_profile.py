"""The profile of this machine: how long the engine takes here for each of a pair's two models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from serving.latency import PROFILE_FILE, Latency
from serving.pair import Model, Pair
from serving.progress import Progress
from serving.timed import Engine
from training.latency_fit import FEWEST, Fit, fit, terms
from training.shape import Shape, draft_shapes, forward_shapes
from training.stopwatch import Stopwatch, Timing, Works, drafts, forwards

REPORT_FILE = "profile.json"
VARIETY = 256
"""Different tokens that runs are made of: any do, but padded vocabularies end early."""


@dataclass(frozen=True)
class Effort:
    """How much is measured, of each model."""

    configurations: int
    """Shapes that coefficients are fitted on; half as many more are held out."""
    repeats: int
    longest: int
    """Tokens of the longest session."""
    seed: int

    def __post_init__(self) -> None:
        for name, least in (("configurations", FEWEST), ("repeats", 1), ("longest", 128)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"latency profile: {name}={value} must be at least {least}.")


class Side(NamedTuple):
    """One model, and the work that its side of the link gives it."""

    name: str
    model: Model
    engine: Engine
    works: Works
    shapes: Callable[[int, int, int], list[Shape]]


def profile(out: Path, progress: Progress, pair: Pair, effort: Effort) -> None:
    """Writes latency.json, which `serving.latency.load_fits` reads, and profile.json with all that was measured.

    Raises ValueError when both models are timed as one architecture, by whose name a profile is looked up.
    """
    from serving.open import open_models
    from training.machine import facts

    _check_names(pair)
    models = open_models(pair.device, pair.cloud)
    sides = (
        Side("device", pair.device, models.device, drafts, draft_shapes),
        Side("cloud", pair.cloud, models.cloud, forwards(models.cloud_layers), forward_shapes),
    )
    machine, latencies, report = {**facts(), "threads": 1}, {}, {}
    for side in sides:
        timed, held_out = _timings(side, effort, progress)
        found = fit(timed, held_out)
        latencies[side.model.timing.name] = asdict(_latency(side, found, str(machine["processor"])))
        report[side.name] = _report(found, timed, held_out)
    _write(out / PROFILE_FILE, {"source": f"profile of this machine ({machine['processor']})", "latencies": latencies})
    _write(out / REPORT_FILE, {"machine": machine, "effort": asdict(effort), **report})


def _check_names(pair: Pair) -> None:
    if pair.device.timing.name == pair.cloud.timing.name:
        raise ValueError(
            f"latency profile: both models of the pair are timed as {pair.cloud.timing.name}, so their measured times "
            "could not be told apart; give them two (model.device.timing, model.cloud.timing)."
        )


def _timings(side: Side, effort: Effort, progress: Progress) -> tuple[list[Timing], list[Timing]]:
    """Of the shapes to fit, and of others of the same kinds; measured together, so that neither has a quieter time."""
    shapes = side.shapes(effort.configurations, effort.longest, effort.seed)
    unseen = side.shapes(effort.configurations // 2, effort.longest, effort.seed + 1)
    runs = effort.repeats * (len(shapes) + len(unseen))
    watch = Stopwatch(side.engine, side.works, VARIETY, effort.seed)
    timed = watch.time([*shapes, *unseen], effort.repeats, lambda done: progress(done, runs, side.name))
    return timed[: len(shapes)], timed[len(shapes) :]


def _latency(side: Side, found: Fit, processor: str) -> Latency:
    source = (
        f"measured here ({processor}, 1 thread, {side.model.dtype}): the {side.name}'s model under the name of "
        f"{side.model.timing.name}, off by {found.held_out.mape:.0%} in the mean"
    )
    return Latency(**found.coefficients, layers=side.model.timing.layers, source=source)


def _report(found: Fit, timed: list[Timing], held_out: list[Timing]) -> dict[str, Any]:
    """`quiet_share` near 1: nobody else wanted this machine meanwhile; near 0, the times are not its own."""
    runs = [run for timing in (*timed, *held_out) for run in timing.runs]
    rows = [_row(timing, "fitted") for timing in timed] + [_row(timing, "held out") for timing in held_out]
    return {**asdict(found), "quiet_share": sum(run.quiet for run in runs) / len(runs), "measurements": rows}


def _row(timing: Timing, use: str) -> dict[str, Any]:
    return {
        "use": use,
        "kind": timing.shape.kind,
        "parts": [part._asdict() for part in timing.shape.parts],
        "terms": terms(timing.loads),
        "median_s": timing.median_s,
        "runs": [run._asdict() for run in timing.runs],
    }


def _write(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data, indent=1), encoding="utf-8")
