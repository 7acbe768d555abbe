"""The stage of `+draws=clock`: one job simulated on many draws of the clock, a folder of records for each."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from serving.deployment.setup import Setup
from serving.hardware.clock_draw import drawn_testbed, pool_identities
from serving.hardware.error_pools import DRAWN_FILE, ClockErrors
from serving.hardware.fleet import Fleet
from serving.hardware.replica_packing import ReplicaPacking
from serving.metrics.batch_timing import BatchObserver
from serving.metrics.utilisation import UtilisationObserver
from serving.progress import Progress, silent
from serving.runtimes.run_results import write_results
from serving.runtimes.runtime import Runtime
from serving.runtimes.simulated import Simulated


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
    setup: Setup,
    runtime: Runtime,
    errors: Path,
    packing: ReplicaPacking | None = None,
    draws: int = 200,
    num_prompts: int = 60,
    batches: bool = False,
    time_lines: bool = False,
) -> None:
    """Simulates the first `num_prompts` prompts on each draw, and writes its records to the folder of its number; with
    `batches` also those of each batch, for claims on how long batches take, and with `time_lines` what each device did
    when, for claims on how long devices wait. What was drawn is noted in DRAWN_FILE.

    The same draw has the same chips in all jobs, so that jobs pair. Raises ValueError for a bad file of `errors`.
    """
    assert isinstance(runtime, Simulated)
    known, brief = ClockErrors.read(errors), replace(runtime, detail=time_lines)
    workload = replace(setup.workload, num_prompts=min(num_prompts, setup.workload.num_prompts))
    setup = replace(setup, workload=workload)
    for draw in range(draws):
        drawn = setup.on_clock(drawn_testbed(setup.hardware, known, draw))
        folder = draw_folder(out, draw)
        batching = BatchObserver() if batches and drawn.uses_target else None
        utilisation = UtilisationObserver() if drawn.hardware.tiers else None
        served = brief.serve(drawn, "cpu", silent, [each for each in (batching, utilisation) if each])
        write_results(folder, drawn, brief, served, packing, batching.batches if batching else (), utilisation)
        if not draw:
            note_drawn(out, setup.hardware.every_fleet, known, workload.num_prompts, len(served.records))
        progress(draw + 1, draws, "draws")


def note_drawn(
    out: Path, fleets: Iterable[Fleet], errors: ClockErrors, prompts: int | None = None, requests: int | None = None
) -> None:
    """Writes DRAWN_FILE: the pool of each of `fleets`, and how many prompts and requests each draw served, if any."""
    found = {"pools": pool_identities(fleets, errors), "prompts": prompts, "requests": requests}
    (out / DRAWN_FILE).write_text(json.dumps(found), encoding="utf-8")


def draw_folder(out: Path, draw: int) -> Path:
    """A new folder for what one draw makes."""
    folder = out / str(draw)
    folder.mkdir()
    return folder
