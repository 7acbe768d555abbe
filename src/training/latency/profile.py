"""The profile of this machine: how long the engine takes for the models of a pair or for published shapes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from serving.hardware.architecture import Architecture
from serving.hardware.executor import Engine
from serving.progress import Progress
from training.latency.artifact import write_profile
from training.latency.grid import ProfilingOptions, WorkGrid
from training.latency.model_profile import ModelProfile
from training.latency.timing import Accelerator, WorkTimer
from training.latency.work import WorkBuilder

HANDOFFS = 200


def thread_handoff_s() -> float:
    """Median seconds from an asyncio loop to a worker thread and back without work; the fits do not include it."""
    return asyncio.run(_measure_handoff())


async def _measure_handoff() -> float:
    loop, found = asyncio.get_running_loop(), []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(HANDOFFS):
            began = time.perf_counter()
            await loop.run_in_executor(pool, int)
            found.append(time.perf_counter() - began)
    return median(found)


MAX_TOKEN_IDS = 256
"""Token ids of runs are below this; padded vocabularies have no tokens at their end."""

WARMUP_SHARE = 0.1
"""Share of a model's budget, at most."""


@dataclass(frozen=True)
class ProfilingTarget:
    """One model with the work of its side of the link. The engine is opened only when the model is profiled."""

    name: str
    architecture: Architecture
    number_format: str
    """In words, for reports."""
    open_engine: Callable[[], Engine]
    build_work: WorkBuilder
    work_grid: WorkGrid
    threads: int = 1
    """CPU threads of torch."""


def check_names(architectures: Sequence[Architecture]) -> None:
    """Raises ValueError for no architecture, or one that is named twice."""
    names = [architecture.name for architecture in architectures]
    if not names:
        raise ValueError(
            "latency profile: no architecture is named; set draft_architectures, target_architectures or both."
        )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"latency profile: two models are timed as {name}, so their measured times could not be told apart; "
                "give each its own (model.device.timed_architecture, model.cloud.timed_architecture, or "
                "draft_architectures and target_architectures)."
            )


def write_measured_profile(
    out: Path,
    progress: Progress,
    targets: Sequence[ProfilingTarget],
    accelerator: Accelerator,
    options: ProfilingOptions,
) -> None:
    """Times all models and writes the artifact. Every model gets an equal part of the budget that is left."""
    began, profiles = time.perf_counter(), []
    for place, target in enumerate(targets):
        left_s = options.budget_s - (time.perf_counter() - began)
        deadline_s = time.perf_counter() + left_s / (len(targets) - place)
        profiles.append(_profile_model(target, accelerator, options, deadline_s, progress))
    threads = max(target.threads for target in targets)
    machine = {**accelerator.machine_info(), "threads": threads, "thread_handoff_s": thread_handoff_s()}
    write_profile(out, f"profile of this machine ({accelerator.name})", profiles, machine, accelerator.memory_nbytes())


def _profile_model(
    target: ProfilingTarget, accelerator: Accelerator, options: ProfilingOptions, deadline_s: float, progress: Progress
) -> ModelProfile:
    shapes = target.work_grid.shapes(options.configurations, options.held_out, options.max_session_tokens, options.seed)
    runs, vocabulary = options.repeats * len(shapes), min(MAX_TOKEN_IDS, target.architecture.vocab_size)
    engine = target.open_engine()
    accelerator.use_threads(target.threads)
    timer = WorkTimer(
        engine, target.build_work, accelerator, vocabulary, options.seed, pause_s=options.pause_ms / 1e3,
        threads=target.threads,
    )  # fmt: skip
    warmup_runs = timer.warm_up(shapes[: options.warmup_runs], WARMUP_SHARE * (deadline_s - time.perf_counter()))
    timings = timer.time_shapes(
        shapes, options.repeats, deadline_s - time.perf_counter(), lambda done: progress(done, runs, target.name)
    )
    counted = "1 thread" if target.threads == 1 else f"{target.threads} threads"
    threads = "" if accelerator.is_gpu else f", {counted}"
    place = f"here ({accelerator.name}{threads}, {target.number_format})"
    return ModelProfile(target.name, target.architecture, place, options, timings, warmup_runs)
