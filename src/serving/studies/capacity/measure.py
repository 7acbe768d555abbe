"""The stage that measures how many devices a policy's cloud carries under an SLO."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from serving.deployment.setup import Setup
from serving.outcomes.outcomes import OutcomeSource
from serving.progress import Progress
from serving.runtimes.simulated import Simulated
from serving.studies.capacity.offered_clouds import OfferedClouds
from serving.studies.capacity.policy_capacity import (
    PolicyCapacity,
    SeedCapacity,
    describe_slo,
    find_policy_capacity,
)
from serving.studies.capacity.search import CapacitySearch
from serving.studies.capacity.stages import run_jobs

JsonObject = dict[str, Any]
"""A JSON object."""
CAPACITY_FILE = "capacity.json"
MILLION = 1e6


@dataclass(frozen=True)
class CloudJob:
    """A search for what one cloud carries."""

    setup: Setup
    outcomes: OutcomeSource
    search: CapacitySearch


def run_cloud_job(job: CloudJob) -> JsonObject:
    """The fields of `PolicyCapacity`."""
    return find_policy_capacity(job.setup, job.outcomes, job.search).to_dict()


def measure_capacity(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    clouds: OfferedClouds,
    runtime: Simulated,
    search: CapacitySearch,
    processes: int | None = None,
) -> None:
    """Finds how many devices each offered cloud carries under the setup's policy and SLO classes, in their shares.

    Writes capacity.json (by cloud), rows.json (a table for an exhibit: the promise, then the clouds) and metrics.json.
    Finished clouds survive an interruption. Raises ValueError without SLO classes.
    """
    slo = clouds.setup.workload.slo
    if not slo:
        raise ValueError("no SLO class says how fast answers should be; set workload.slo, or add +slo=mixed")
    jobs = [CloudJob(setup, runtime.outcomes, search) for setup in clouds.setups.values()]
    found = run_jobs(jobs, list(clouds.setups), run_cloud_job, work, progress, processes)
    measured = {name: PolicyCapacity.from_dict(one) for name, one in zip(clouds.setups, found, strict=True)}
    rows = {name: capacity_cells(one, clouds.setups[name]) for name, one in measured.items()}
    rows |= {name: {"why": why} for name, why in clouds.refusals.items()}
    _write(out / CAPACITY_FILE, {name: one.to_dict() for name, one in measured.items()})
    _write(out / "rows.json", {describe_slo(slo): rows})
    _write(out / "metrics.json", {f"{name}/devices": one.devices for name, one in measured.items() if one.devices})


def read_capacities(folder: Path) -> dict[str, PolicyCapacity]:
    """The capacities that `measure_capacity` wrote, by cloud."""
    found = json.loads((folder / CAPACITY_FILE).read_text(encoding="utf-8"))
    return {name: PolicyCapacity.from_dict(one) for name, one in found.items()}


def capacity_cells(found: PolicyCapacity, setup: Setup) -> JsonObject:
    """The cells of one cloud's row: a value for each seed, or a text."""
    usd_per_hour = cloud_usd_per_hour(setup)
    goodput_usd = (
        (lambda one: usd_per_hour / 3600 / one.goodput_tokens_per_s * MILLION if one.goodput_tokens_per_s else None)
        if usd_per_hour and found.devices
        else (lambda _: None)
    )
    by_seed: Mapping[str, Callable[[SeedCapacity], float | None]] = {
        "goodput, tokens/s": lambda one: one.goodput_tokens_per_s,
        "TTFT, s": lambda one: one.spending.ttft_s if one.spending else None,
        "tokens/s a device": lambda one: one.spending.tokens_per_s if one.spending else None,
        "USD/M tokens": goodput_usd,
        "device J/token": lambda one: one.spending.device_j_per_token if one.spending else None,
        "radio J/token": lambda one: one.spending.radio_j_per_token if one.spending else None,
    }
    return {
        "devices": _devices_cell(found),
        "devices, 95 %": _interval_text(found),
        "late": _late_text(found),
        **{name: seed_cell(found, value) for name, value in by_seed.items()},
        "why": found.why_none(setup.workload.slo) or None,
    }


def seed_cell(found: PolicyCapacity, value: Callable[[SeedCapacity], float | None]) -> JsonObject | None:
    """A cell with a number for each seed; None if one is not known."""
    numbers = {str(seed): value(one) for seed, one in found.by_seed.items()}
    return None if None in numbers.values() else {"by_seed": numbers}


def cloud_usd_per_hour(setup: Setup) -> float | None:
    """The price of all chips of the setup's cloud; None if one has none, or there is no cloud of its own."""
    cloud = setup.hardware.cloud
    if cloud is None or cloud.chip.price is None or not setup.uses_target:
        return None
    return cloud.chip.price.usd_per_hour * cloud.tensor_parallel * cloud.count * setup.chip_sets_per_cloud_node


def _devices_cell(found: PolicyCapacity) -> JsonObject | str:
    if found.devices is None:
        return "any number"
    return {"by_seed": {str(seed): one.capacity for seed, one in found.by_seed.items()}}


def _interval_text(found: PolicyCapacity) -> str | None:
    if found.low is None or found.high is None:
        return None
    text = f"{found.low:.1f} to {found.high:.1f}"
    return f"{text}, stopped at the limit" if found.bounded else text


def _late_text(found: PolicyCapacity) -> str:
    """The share of late answers of each class at the measured load, mean over the seeds."""
    seeds = [one.violations for one in found.by_seed.values()]
    names = dict.fromkeys(name for own in seeds for name in own)
    return "; ".join(f"{name}: {fmean(own[name] for own in seeds if name in own):.1%}" for name in names)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
