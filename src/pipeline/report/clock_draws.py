"""The stage of `+draws=clock`: one job's metrics on many draws of the clock, simulated.

draws.json: metric -> its value in every draw. The same draw has the same chips in all jobs, so that jobs pair.
"""

import json
from dataclasses import replace
from pathlib import Path

from pipeline.report.records import Records
from pipeline.report.results.draws import DRAWS_FILE
from pipeline.report.summary import summarise
from serving.deployment.setup import Setup
from serving.hardware.clock_draw import ClockErrors, drawn_testbed
from serving.hardware.replica_packing import ReplicaPacking
from serving.progress import Progress, silent
from serving.runtimes.runtime import Runtime
from serving.runtimes.simulated import Simulated
from serving.stages import serve

_PREFIXES = ("latency/", "cost/", "throughput/", "slo/", "quality/", "energy/", "offloading/", "partition/")
"""The metrics that are kept, where they are means or totals."""


def check_draw_clock(*, setup: Setup, runtime: Runtime, draws: int, num_prompts: int, **_: object) -> None:
    """Raises ValueError for a runtime that runs models, and for numbers below 1."""
    if not isinstance(runtime, Simulated):
        raise ValueError(  # noqa: TRY004 - what a person chose
            f"the clock is drawn {draws} times, and runtime {type(runtime).__name__} would run models each time; add "
            "runtime=simulated (it records what the models write once)."
        )
    if draws < 1 or num_prompts < 1:
        raise ValueError(f"draws={draws} and num_prompts={num_prompts} must be 1 or more.")
    runtime.check(setup)


def draw_clock(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    setup: Setup,
    runtime: Runtime,
    errors: Path,
    packing: ReplicaPacking | None = None,
    draws: int = 200,
    num_prompts: int = 60,
) -> None:
    """Simulates the first `num_prompts` prompts on each draw, and writes draws.json. Raises ValueError for `errors`."""
    known = ClockErrors.read(errors)
    workload = replace(setup.workload, num_prompts=min(num_prompts, setup.workload.num_prompts))
    series: dict[str, list[float]] = {}
    for draw in range(draws):
        drawn = replace(setup, workload=workload, hardware=drawn_testbed(setup.hardware, known, draw))
        for metric, value in _metrics(work / "served", drawn, runtime, packing).items():
            series.setdefault(metric, []).append(value)
        progress(draw + 1, draws, "draws")
    complete = {metric: values for metric, values in series.items() if len(values) == draws}
    (out / DRAWS_FILE).write_text(json.dumps(complete), encoding="utf-8")


def _metrics(folder: Path, setup: Setup, runtime: Runtime, packing: ReplicaPacking | None) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    serve(folder, progress=silent, setup=setup, runtime=runtime, packing=packing)
    found = summarise(Records.read(folder)).metrics()
    return {metric: value for metric, value in found.items() if metric.startswith(_PREFIXES)}
