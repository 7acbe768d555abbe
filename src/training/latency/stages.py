"""What configuration may name as a stage that reports on a profile: tables and figures of WISP, each as rows.json."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from serving.engines.models import Pair
from serving.hardware.architecture import Architecture
from serving.hardware.chip import Chip
from serving.hardware.fleet import Fleet
from serving.progress import Progress
from training.latency.interference import Interference

if TYPE_CHECKING:
    from training.latency.tables import Rows


def scores(out: Path, *, profile: Path) -> None:
    """Table 7: R2, adjusted R2, RMSE, MAE, MAPE and the largest error, on training and test set and in folds."""
    from training.latency import tables
    from training.latency.profiled import read

    _write(out, tables.scores(read(profile)))


def coefficients(out: Path, *, profile: Path, chip: Chip, architecture: Architecture) -> None:
    """Table 12: coefficients with 95 % intervals beside the sets that `chip` has for `architecture`."""
    from training.latency import tables
    from training.latency.profiled import read

    _write(out, tables.coefficients(read(profile), chip, architecture))


def residuals(out: Path, *, profile: Path) -> None:
    """Fig. 9: predicted against measured times, and what is left over; rows.json and figures."""
    from training.latency import tables
    from training.latency.profiled import read

    models = read(profile)
    _write(out, tables.residuals(models))
    tables.draw(models, out / "figures")


def regimes(out: Path, *, profile: Path, chip: Chip, architecture: Architecture, longest: int = 2000) -> None:
    """Fig. 11 and the component analysis of appendix C: errors by regime, and the parts of a prediction.

    Groups of their own show what the chip's sets for `architecture` say of the deterministic configurations, of
    sessions of up to `longest` tokens.
    """
    from training.latency import tables
    from training.latency.profiled import read
    from training.latency.work import FORWARDS

    rows = tables.regimes(read(profile))
    for fits in chip.fitted.values():
        if latency := fits.latencies.get(architecture.name):
            rows[f"{fits.source}, {architecture.name}"] = tables.implied(latency, FORWARDS, longest)
    _write(out, rows)


def interference(
    out: Path,
    *,
    progress: Progress,
    pair: Pair,
    here: Interference,
    published: Interference,
    fleet: Fleet,
    architecture: Architecture,
    profile: Path | None = None,
    accelerator: str = "cpu",
    machine: str = "",  # noqa: ARG001
) -> None:
    """Fig. 4: a long request, a short cached one, and both in a batch; the pair's large model, timed on this machine.

    `published` is what `fleet` takes for `architecture`; `profile` predicts the batches that are measured. `machine`
    only names it, so that outputs shared by two machines keep figures of each.
    """
    from serving.hardware.latency import load_fits
    from training.latency.interference import measured, predicted, time_batches

    fits = load_fits(profile).latencies if profile else {}
    timings = time_batches(pair, here, accelerator, progress)
    _write(
        out,
        {
            "measured here": measured(here, timings, fits.get(pair.cloud.timing.name)),
            f"{architecture.name} on {fleet.tensor_parallel} x {fleet.chip.name}": predicted(
                published, fleet.latency(architecture)
            ),
        },
    )


def _write(out: Path, rows: "Rows") -> None:
    (out / "rows.json").write_text(json.dumps(rows, indent=1, allow_nan=False), encoding="utf-8")
