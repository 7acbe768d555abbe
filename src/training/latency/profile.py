"""The profile of this machine: how long the engine takes here, for the models of a pair or of published shapes.

What it costs to hand work to another thread and hear of it: no fit of the engine holds that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from serving.engines.models import Dtype, Pair
from serving.hardware.architecture import Architecture
from serving.hardware.timed_executor import Engine
from serving.progress import Progress
from training.latency.artifact import write
from training.latency.grid import Catalogue, Effort
from training.latency.measured import Measured, Planned
from training.latency.published import check_layers, check_room, published_engine
from training.latency.timing import Accelerator, Stopwatch
from training.latency.work import DRAFTS, FORWARDS, Works, drafts, forwards

HOPS = 200


def dispatch_s() -> float:
    """Median seconds from an asyncio loop to a worker thread and back, without any work."""
    return asyncio.run(_hops())


async def _hops() -> float:
    loop, found = asyncio.get_running_loop(), []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(HOPS):
            began = time.perf_counter()
            await loop.run_in_executor(pool, int)
            found.append(time.perf_counter() - began)
    return median(found)


VARIETY = 256
"""Different tokens that runs are made of: any do, but padded vocabularies end early."""

WARM_UP_SHARE = 0.1
"""Of a model's budget, at most."""


@dataclass(frozen=True)
class Subject:
    """One model, and the work that its side of the link gives it; opened when its turn comes."""

    name: str
    architecture: Architecture
    dtype: Dtype
    open: Callable[[], Engine]
    works: Works
    catalogue: Catalogue


def profile_pair(out: Path, progress: Progress, pair: Pair, accelerator: Accelerator, effort: Effort) -> None:
    """The device's model drafts and the cloud's verifies; both under the names of what they are timed as.

    Raises ValueError when both are timed as one architecture, by whose name a profile is looked up.
    """
    from serving.deployment.model_loading import open_models

    _check_names([pair.device.timing, pair.cloud.timing])
    models = open_models(pair.device, pair.cloud, accelerator.device)
    device, cloud = pair.device, pair.cloud
    works = forwards(models.cloud_layers)
    subjects = [
        Subject("device", device.timing, device.dtype, lambda: models.device, drafts, DRAFTS),
        Subject("cloud", cloud.timing, cloud.dtype, lambda: models.cloud, works, FORWARDS),
    ]
    _profile(out, progress, subjects, accelerator, effort)


def profile_shapes(
    out: Path,
    progress: Progress,
    drafting: Sequence[Architecture],
    verifying: Sequence[Architecture],
    dtype: Dtype,
    accelerator: Accelerator,
    effort: Effort,
) -> None:
    """Models of published shapes with random weights, one at a time in memory.

    Raises ValueError, before anything is measured, for no architecture, one that is named twice, one whose layers the
    engine does not have, or one that does not fit.
    """
    _check_names([*drafting, *verifying])
    for architecture in (*drafting, *verifying):
        check_layers(architecture)
        check_room(architecture, dtype, effort.longest, accelerator.free_nbytes())
    subjects = [_random(each, dtype, accelerator, effort, drafts, DRAFTS) for each in drafting]
    subjects += [_random(each, dtype, accelerator, effort, forwards(each.layers), FORWARDS) for each in verifying]
    _profile(out, progress, subjects, accelerator, effort)


def _random(
    architecture: Architecture,
    dtype: Dtype,
    accelerator: Accelerator,
    effort: Effort,
    works: Works,
    catalogue: Catalogue,
) -> Subject:
    def opened() -> Engine:
        return published_engine(architecture, dtype, effort.longest, accelerator)

    return Subject(architecture.name, architecture, dtype, opened, works, catalogue)


def _check_names(architectures: Sequence[Architecture]) -> None:
    names = [architecture.name for architecture in architectures]
    if not names:
        raise ValueError("latency profile: no architecture is named; set drafting, verifying or both.")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"latency profile: two models are timed as {name}, so their measured times could not be told apart; "
                "give each its own (model.device.timing, model.cloud.timing, or drafting and verifying)."
            )


def _profile(
    out: Path, progress: Progress, subjects: Sequence[Subject], accelerator: Accelerator, effort: Effort
) -> None:
    """Each model has an equal part of what is left of the budget, opening it included."""
    began, measured = time.perf_counter(), []
    for place, subject in enumerate(subjects):
        left_s = effort.budget_s - (time.perf_counter() - began)
        ends = time.perf_counter() + left_s / (len(subjects) - place)
        measured.append(_measure(subject, accelerator, effort, ends, progress))
    machine = {**accelerator.facts(), "dispatch_s": dispatch_s()}
    write(out, f"profile of this machine ({accelerator.name})", measured, machine, accelerator.memory_nbytes())


def _measure(subject: Subject, accelerator: Accelerator, effort: Effort, ends: float, progress: Progress) -> Measured:
    shapes = subject.catalogue.shapes(effort.configurations, effort.held_out, effort.longest, effort.seed)
    runs, vocabulary = effort.repeats * len(shapes), min(VARIETY, subject.architecture.vocabulary)
    watch = Stopwatch(
        subject.open(), subject.works, accelerator, vocabulary, effort.seed, pause_s=effort.pause_ms / 1e3
    )
    warm_ups = watch.warm_up(shapes[: effort.warm_ups], WARM_UP_SHARE * (ends - time.perf_counter()))
    timings = watch.time(
        shapes, effort.repeats, ends - time.perf_counter(), lambda done: progress(done, runs, subject.name)
    )
    threads = "" if accelerator.is_gpu else ", 1 thread"
    place = f"here ({accelerator.name}{threads}, {subject.dtype})"
    planned = Planned(len(shapes), effort.repeats)
    return Measured(subject.name, subject.architecture, place, effort, timings, planned, warm_ups)
