"""Stages of latency that configuration names: profiles of a machine, and reports on a profile as rows.json."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from serving.engines.models import Dtype, ModelConfig, ModelPair
from serving.hardware import clock_draw, error_pools
from serving.hardware.architecture import Architecture
from serving.hardware.chip import Chip
from serving.hardware.fitted_latencies import load_fitted_latencies
from serving.hardware.fleet import Fleet
from serving.policy.policy import EngineRequirements
from serving.progress import Progress
from serving.studies.clock_draws import draw_folder, note_drawn
from training.latency import clock, tables
from training.latency.artifact import read_profile, write_profile
from training.latency.former_clock import FormerClock
from training.latency.grid import ProfilingOptions, WorkGrid
from training.latency.interference import InterferenceOptions, measured_rows, predicted_rows, time_batches
from training.latency.model_profile import ModelProfile
from training.latency.profile import ProfilingTarget, check_names, write_measured_profile
from training.latency.published import check_layers, check_memory, published_engine
from training.latency.published_speeds import PublishedSpeed, read_speeds
from training.latency.speed_fit import SpeedFit
from training.latency.timing import Accelerator
from training.latency.timings_file import read_timings
from training.latency.work import DRAFT_GRID, FORWARD_GRID, WorkBuilder, draft_work, forward_work_builder


def profile_latency(
    out: Path,
    *,
    progress: Progress,
    pair: ModelPair,
    options: ProfilingOptions = ProfilingOptions(),  # noqa: B008
    accelerator: str = "cpu",
    machine: str = "",  # noqa: ARG001
) -> None:
    """Times both models of a pair on this machine and fits WISP, Eq. 19 (section 4.4 and appendix C).

    Each runs on the threads and in the precision of its configuration: the device's model drafts, the cloud's
    verifies, each under its timed architecture's name; raises ValueError if both have the same one. Writes latency.json
    (coefficients), profile.json (all measurements), profile.txt, metrics.json, figures and chip.yaml, a chip to keep.
    `machine` is part of the artifact's identity only: two machines can share outputs.
    """
    from serving.deployment.model_loading import load_models

    device, cloud = pair.device, pair.cloud
    check_names([device.timed_architecture, cloud.timed_architecture])
    place = Accelerator(accelerator)
    models = load_models(device, cloud, place.device, EngineRequirements(sessions=1, verifies_drafts=True))
    works = forward_work_builder(models.cloud_layers)
    targets = [
        ProfilingTarget(
            "device",
            device.timed_architecture,
            _number_format(device),
            lambda: models.device,
            draft_work,
            DRAFT_GRID,
            device.threads,
        ),
        ProfilingTarget(
            "cloud",
            cloud.timed_architecture,
            _number_format(cloud),
            lambda: models.cloud,
            works,
            FORWARD_GRID,
            cloud.threads,
        ),
    ]
    write_measured_profile(out, progress, targets, place, options)


def _number_format(model: ModelConfig) -> str:
    return model.dtype if model.quantization == "none" else f"{model.quantization} and {model.dtype}"


def profile_published(
    out: Path,
    *,
    progress: Progress,
    draft_architectures: tuple[Architecture, ...] = (),
    target_architectures: tuple[Architecture, ...] = (),
    dtype: Dtype = "fp16",
    options: ProfilingOptions = ProfilingOptions(),  # noqa: B008
    accelerator: str = "cpu",
    machine: str = "",  # noqa: ARG001
) -> None:
    """Times models of published shapes with random weights, drafting or verifying, one at a time in memory; writes the
    same artifact.

    Raises ValueError, before anything is measured, for no architecture, a repeated one, one whose layers the engine
    does not have, or, with the arithmetic, one that does not fit into memory.
    """
    every, place = (*draft_architectures, *target_architectures), Accelerator(accelerator)
    check_names(every)
    for architecture in every:
        check_layers(architecture)
        check_memory(architecture, dtype, options.max_session_tokens, place.free_nbytes())
    works: list[tuple[Architecture, WorkBuilder, WorkGrid, int | None]] = [
        *((each, draft_work, DRAFT_GRID, 1) for each in draft_architectures),
        *((each, forward_work_builder(each.layers), FORWARD_GRID, None) for each in target_architectures),
    ]
    open_engine = partial(
        published_engine, dtype=dtype, max_session_tokens=options.max_session_tokens, accelerator=place
    )
    targets = [
        ProfilingTarget(each.name, each, dtype, partial(open_engine, each, rows=rows), build_work, work_grid)
        for each, build_work, work_grid, rows in works
    ]
    write_measured_profile(out, progress, targets, place, options)


def profile_from_csv(
    out: Path,
    *,
    file: Path,
    architectures: tuple[Architecture, ...],
    measured_on: str,
    options: ProfilingOptions = ProfilingOptions(),  # noqa: B008
) -> None:
    """Fits the user's own timings from a CSV file, measured on `measured_on`; writes the same artifact.

    The columns are in `training.latency.timings_file`. Only bootstraps, folds and seed of `options` are used. Raises
    ValueError that names the line.
    """
    timings = read_timings(file, architectures, options.seed)
    measured = [ModelProfile(each.name, each, measured_on, options, timings[each.name]) for each in architectures]
    write_profile(out, f"timings of one's own ({measured_on})", measured, {"processor": measured_on})


def scores(out: Path, *, profile: Path) -> None:
    """Table 7: R2, adjusted R2, RMSE, MAE, MAPE and the largest error, on training and test set and in folds."""
    _write(out, tables.scores(read_profile(profile)))


def coefficients(out: Path, *, profile: Path, chip: Chip, architecture: Architecture) -> None:
    """Table 12: coefficients with 95 % intervals beside the sets that `chip` has for `architecture`."""
    _write(out, tables.coefficients(read_profile(profile), chip, architecture))


def residuals(out: Path, *, profile: Path) -> None:
    """Fig. 9: predicted against measured times, and residuals; rows.json and figures."""
    models = read_profile(profile)
    _write(out, tables.residuals(models))
    tables.draw_figures(models, out / "figures")


def regimes(
    out: Path, *, profile: Path, chip: Chip, architecture: Architecture, max_session_tokens: int = 2000
) -> None:
    """Fig. 11 and the component analysis of appendix C: errors by regime, and the components of a prediction.

    Further groups show the same for the chip's fitted sets of `architecture`, on the deterministic configurations with
    sessions of up to `max_session_tokens` tokens.
    """
    rows = tables.regimes(read_profile(profile))
    for fits in chip.fitted.values():
        if latency := fits.latencies.get(architecture.name):
            rows[f"{fits.source}, {architecture.name}"] = tables.implied_shares(
                latency, FORWARD_GRID, max_session_tokens
            )
    _write(out, rows)


def interference(
    out: Path,
    *,
    progress: Progress,
    pair: ModelPair,
    local: InterferenceOptions,
    published: InterferenceOptions,
    fleet: Fleet,
    architecture: Architecture,
    profile: Path | None = None,
    accelerator: str = "cpu",
    machine: str = "",  # noqa: ARG001
) -> None:
    """Fig. 4: a long request, a short cached one, and both in a batch; the pair's large model, timed on this machine.

    `published` is predicted for `architecture` on `fleet`; `profile` predicts the measured batches. `machine` is part
    of the artifact's identity only: two machines can share outputs.
    """
    fits = load_fitted_latencies(profile).latencies if profile else {}
    timings = time_batches(pair, local, accelerator, progress)
    measured = measured_rows(local, timings, fits.get(pair.cloud.timed_architecture.name))
    _write(out, {"measured here": measured} | _interference_on(fleet, architecture, published))


def draw_interference(
    out: Path,
    *,
    progress: Progress,
    published: InterferenceOptions,
    fleet: Fleet,
    architecture: Architecture,
    errors: Path,
    draws: int = 200,
) -> None:
    """The rows that `interference` predicts on `fleet`, on each draw of the clock. Raises ValueError for a bad file of
    `errors`.
    """
    known = error_pools.ClockErrors.read(errors)
    note_drawn(out, [fleet], known)
    for draw in range(draws):
        drawn = clock_draw.drawn_fleet(fleet, known, draw)
        _write(draw_folder(out, draw), _interference_on(drawn, architecture, published))
        progress(draw + 1, draws, "draws")


def _interference_on(fleet: Fleet, architecture: Architecture, options: InterferenceOptions) -> tables.TableGroups:
    name = f"{architecture.name} on {fleet.tensor_parallel} x {fleet.chip.name}"
    return {name: predicted_rows(options, fleet.latency(architecture))}


def check_score_clock(
    *, chips: tuple[Chip, ...], architectures: tuple[Architecture, ...], own_speeds: tuple[Path, ...] = (),
    own_chips: tuple[Chip, ...] = (), own_architectures: tuple[Architecture, ...] = (), **_: object,
) -> None:  # fmt: skip
    """Raises ValueError that names a line of a user's own file that is no row."""
    _read_rows(own_speeds, chips + own_chips, architectures + own_architectures)


def score_clock(
    out: Path,
    *,
    progress: Progress,
    speeds: Path,
    former: Path,
    chips: tuple[Chip, ...],
    architectures: tuple[Architecture, ...],
    relatives: Path | None = None,
    own_speeds: tuple[Path, ...] = (),
    own_chips: tuple[Chip, ...] = (),
    own_architectures: tuple[Architecture, ...] = (),
) -> None:
    """Fits what software reaches of these chips to published speeds, and scores the fit on rows that it has not seen.

    `own_speeds` are files of rows that a user measured, perhaps on `own_chips` or with `own_architectures`: they join
    the published ones, and have a table of their own. `former` has the figures of the clock before. `relatives` has
    rows of machines that conf lacks, each under the chip that it is nearest to: they check that chip's figures alone.
    Writes rows.json (errors by split, by processor and software, by mode, before and after; kernels; order of pairs;
    figures that stand in; worst rows), software.yaml (the figures for conf/hardware/chip, by chip), errors.json (for
    draws of the clock), held_out.csv (for reports) and a scatter plot. Raises ValueError that names a line of a file
    that cannot be read.
    """
    chips, architectures = chips + own_chips, architectures + own_architectures
    own = _read_rows(own_speeds, chips, architectures)
    rows = _read_rows((speeds,), chips, architectures) + own
    fit = SpeedFit(rows)
    held_out = clock.hold_out(fit, rows, lambda done, total: progress(done, total, "fits"))
    groups = clock.error_rows(held_out) | clock.before_rows(held_out, FormerClock.read(former))
    groups |= {"kernels": clock.kernel_rows(rows), "which is faster": clock.ordering_rows(held_out)}
    nearest = _read_rows((relatives,) if relatives else (), chips, architectures)
    groups |= {"figures that stand in": clock.stand_in_rows(fit, rows, nearest)}
    groups |= {"rows of your own": clock.own_rows(held_out, own), "worst rows": clock.worst_rows(held_out)}
    _write(out, {title: found for title, found in groups.items() if found})
    (out / "software.yaml").write_text(clock.software_yaml(fit, rows, held_out, chips), encoding="utf-8")
    drawn_from = clock_draw.as_json(clock.clock_errors(held_out), clock.measured_modes(rows, chips))
    (out / "errors.json").write_text(drawn_from, encoding="utf-8")
    (out / "held_out.csv").write_text(clock.held_out_csv(held_out, chips), encoding="utf-8")
    (out / "figures").mkdir(exist_ok=True)
    clock.draw_scatter(held_out, out / "figures" / "scatter.png")


def _read_rows(
    files: Sequence[Path], chips: Sequence[Chip], architectures: Sequence[Architecture]
) -> list[PublishedSpeed]:
    by_name = {chip.name: chip for chip in chips}, {each.name: each for each in architectures}
    return [row for file in files for row in read_speeds(file, *by_name)]


def _write(out: Path, rows: tables.TableGroups) -> None:
    (out / "rows.json").write_text(json.dumps(rows, indent=1, allow_nan=False), encoding="utf-8")
