"""profile.txt: what was measured and how far it can be trusted, for people.

The plots of a profile: predicted against measured, and what is left over, by category.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from serving.hardware.latency import COEFFICIENTS
from training.latency.fit import PAPER, Array, Fit, equations
from training.latency.grid import CATEGORIES
from training.latency.measured import POINT, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 120

_LIMITS = (
    "Not in these times: handing work to another thread ({ms:.2f} ms a time here), the nodes' own decisions and "
    "records, two models that want the processor at once, scores that a policy asks of drafts, and a cache's growth, "
    "once a session. The engine's own work for each token is in them."
)


def sheet(source: str, measured: Sequence[Measured], machine: Mapping[str, object]) -> str:
    """The whole text; lines of at most 120 columns."""
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "dispatch_s")
    lines = [source, *wrap(facts, WIDTH)]
    for each in measured:
        lines += ["", *_model(each)]
    hop_s = machine.get("dispatch_s")
    if isinstance(hop_s, float):  # else somebody else measured, who knows what is in it
        lines += ["", *wrap(_LIMITS.format(ms=1e3 * hop_s), WIDTH)]
    return "\n".join([*lines, ""])


def _model(measured: Measured) -> list[str]:
    name = measured.architecture.name
    title = name if measured.name == name else f"{measured.name}, timed as {name}"
    return [
        title,
        "=" * len(title),
        *_measured(measured),
        "",
        *_coefficients(measured.fit, measured.plain),
        "",
        *_scores(measured.fit, measured.plain),
        "",
        *_categories(measured),
        "",
        f"prefill of {POINT} tokens {_ms(measured.prefill_s)} ms; "
        f"a token behind {POINT} cached ones {_ms(measured.token_s)} ms",
    ]


def _measured(measured: Measured) -> list[str]:
    fit, quiet = measured.fit, measured.quiet_share
    lines = [
        f"{fit.fitted.configurations} configurations fitted on, {fit.held_out.configurations} held out, "
        f"{measured.repeats} runs of each or more, {_known(measured.warm_ups)} warm-ups",
        f"quiet runs {_share(quiet)}; configurations whose runs vary by less than 5 %: {_share(measured.steady_share)}",
    ]
    if measured.disturbed:
        lines.append(f"configurations without a quiet run, whose processor time counts instead: {measured.disturbed}")
    if (first := measured.first_run_share) is not None:
        lines.append(f"a configuration's first run takes {first:.2f} of its median, in the middle")
    if measured.cut:
        lines.append(f"CUT by budget_s={measured.effort.budget_s:g}: {measured.cut}")
    return lines


def _coefficients(fit: Fit, plain: Fit) -> list[str]:
    lines = [f"{'coefficient':<14}{'used':>12}   {'95 % interval':<26}{'plain least squares':>20}   95 % interval"]
    for place, name in enumerate(COEFFICIENTS):
        ours = f"{name:<14}{fit.coefficients[name]:>12.4g}   {_interval(fit, name):<26}"
        theirs = f"{plain.coefficients[name]:>20.4g}   {_interval(plain, name)}" if place < PAPER else f"{'-':>20}"
        lines.append(ours + theirs)
    return lines


def _interval(fit: Fit, name: str) -> str:
    low, high = fit.intervals[name]
    return f"[{low:.3g}, {high:.3g}]"


def _scores(fit: Fit, plain: Fit) -> list[str]:
    lines = [f"{'':<30}{'R2':>8}{'adj. R2':>9}{'MAPE':>8}{'MAE ms':>9}{'RMSE ms':>9}{'max ms':>9}"]
    for label, each in (("used", fit), ("plain least squares", plain)):
        for part, found in (("fitted", each.fitted), ("held out", each.held_out)):
            adjusted = "-" if found.adjusted_r2 is None else f"{found.adjusted_r2:.4f}"
            lines.append(
                f"{f'{label}, {part}':<30}{found.r2:>8.4f}{adjusted:>9}{found.mape:>8.1%}"
                f"{_ms(found.mae_s):>9}{_ms(found.rmse_s):>9}{_ms(found.max_s):>9}"
            )
    folds, gap = fit.folds, fit.fitted.r2 - fit.held_out.r2
    lines.append(
        f"cross-validation: R2 {folds.r2:.4f} ± {folds.r2_deviation:.4f}, "
        f"MAPE {folds.mape:.1%} ± {folds.mape_deviation:.1%}; R2 fitted minus held out {gap:.4f}"
    )
    return lines


def _categories(measured: Measured) -> list[str]:
    fit, plain = measured.fit, measured.plain
    names = dict.fromkeys((*CATEGORIES, *fit.fitted_mape, *fit.held_out_mape))
    lines = [f"{'MAPE by category':<30}{'fitted':>10}{'held out':>10}{'plain, held out':>18}"]
    for name in names:
        if name in fit.fitted_mape or name in fit.held_out_mape:
            found = (fit.fitted_mape.get(name), fit.held_out_mape.get(name), plain.held_out_mape.get(name))
            known, unseen, theirs = ("-" if value is None else f"{value:.1%}" for value in found)
            lines.append(f"{name:<30}{known:>10}{unseen:>10}{theirs:>18}")
    return lines


def _known(count: int | None) -> str:
    return "an unknown number of" if count is None else str(count)


def _share(share: float | None) -> str:
    return "not known" if share is None else f"{share:.0%}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


_COLOURS = ("#3366cc", "#d9572b", "#2f9e6e", "#8b5cc7", "#c79a1b", "#5f6b7a", "#c2417c", "#1fa3b8")


def draw(measured: Measured, folder: Path) -> None:
    """Writes NAME_predicted.png and NAME_residuals.png; held-out configurations are crosses."""
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    x, seconds = equations(measured.timings)
    predicted = x @ np.array([measured.fit.coefficients[name] for name in COEFFICIENTS])
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    _predicted(figure.add_subplot(), measured, 1e3 * seconds, 1e3 * predicted)
    _save(figure, folder / f"{measured.name}_predicted.png", f"{measured.name}: predicted against measured")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    _residuals(figure.add_subplot(), measured, 1e3 * seconds, 100 * (predicted / seconds - 1))
    _save(figure, folder / f"{measured.name}_residuals.png", f"{measured.name}: error of the prediction")


def _predicted(axes: Axes, measured: Measured, measured_ms: Array, predicted_ms: Array) -> None:
    ends = [float(measured_ms.min()), float(measured_ms.max())]
    axes.plot(ends, ends, color="#9aa5b1", linewidth=1)
    _points(axes, measured, measured_ms, predicted_ms)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")


def _residuals(axes: Axes, measured: Measured, measured_ms: Array, off_percent: Array) -> None:
    axes.axhline(0, color="#9aa5b1", linewidth=1)
    _points(axes, measured, measured_ms, off_percent)
    axes.set(xscale="log", xlabel="measured, ms", ylabel="predicted too long (+) or too short (-), %")


def _points(axes: Axes, measured: Measured, x: Array, y: Array) -> None:
    for category, colour, rows in _groups(measured):
        for held_out, marker in ((False, "o"), (True, "x")):
            of_use = [i for i in rows if measured.timings[i].shape.held_out == held_out]
            label = f"{category}{', held out' if held_out else ''}"
            if of_use:
                axes.scatter(x[of_use], y[of_use], s=16, color=colour, marker=marker, linewidths=1, label=label)
    axes.legend(fontsize=7, frameon=False)
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)


def _groups(measured: Measured) -> Iterator[tuple[str, str, list[int]]]:
    categories = dict.fromkeys(timing.shape.category for timing in measured.timings)
    for place, category in enumerate(categories):
        rows = [i for i, timing in enumerate(measured.timings) if timing.shape.category == category]
        yield category, _COLOURS[place % len(_COLOURS)], rows


def _save(figure: Figure, path: Path, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=130, metadata={"Software": None})
