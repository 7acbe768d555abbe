"""profile.txt and the plots of a profile: what was measured, the fit and its errors, for people."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from serving.hardware.latency import COEFFICIENTS
from training.fitting.figures import save_figure
from training.latency.fit import NUM_PAPER_TERMS, Array, LatencyFit, design_matrix
from training.latency.grid import CATEGORIES
from training.latency.model_profile import QUOTED_TOKENS, ModelProfile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 120

_LIMITATIONS = (
    "Not in these times: handing work to another thread ({ms:.2f} ms each time here), the nodes' own decisions and "
    "records, two models that compute at once, scores that a policy requests of drafts, and a cache's growth, "
    "once in a session. The engine's own work for each token is included."
)


def profile_text(source: str, profiles: Sequence[ModelProfile], machine: Mapping[str, object]) -> str:
    """The whole text, in lines of at most 120 characters."""
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "thread_handoff_s")
    lines = [source, *wrap(facts, WIDTH)]
    for each in profiles:
        lines += ["", *_model_lines(each)]
    handoff_s = machine.get("thread_handoff_s")
    if isinstance(handoff_s, float):  # unknown for timings from a file
        lines += ["", *wrap(_LIMITATIONS.format(ms=1e3 * handoff_s), WIDTH)]
    return "\n".join([*lines, ""])


def _model_lines(profile: ModelProfile) -> list[str]:
    name = profile.architecture.name
    title = name if profile.name == name else f"{profile.name}, timed as {name}"
    return [
        title,
        "=" * len(title),
        *_run_lines(profile),
        "",
        *_coefficient_lines(profile.fit, profile.ordinary_fit),
        "",
        *_score_lines(profile.fit, profile.ordinary_fit),
        "",
        *_category_lines(profile),
        "",
        f"prefill of {QUOTED_TOKENS} tokens {_ms_text(profile.prefill_s)} ms; "
        f"a token behind {QUOTED_TOKENS} cached ones {_ms_text(profile.decode_s)} ms",
    ]


def _run_lines(profile: ModelProfile) -> list[str]:
    fit, quiet = profile.fit, profile.undisturbed_share
    lines = [
        f"{fit.fitted.configurations} configurations fitted on, {fit.held_out.configurations} held out, "
        f"{profile.repeats} runs of each or more, {_count_text(profile.warmup_runs)} warm-ups",
        f"quiet runs {_share_text(quiet)}; "
        f"configurations whose runs vary by less than 5 %: {_share_text(profile.steady_share)}",
    ]
    if profile.num_disturbed:
        lines.append(
            f"configurations without a quiet run, whose processor time counts instead: {profile.num_disturbed}"
        )
    if (first := profile.first_run_share) is not None:
        lines.append(f"a configuration's first run takes {first:.2f} of its median, in the middle")
    if profile.omitted:
        lines.append(f"CUT by budget_s={profile.options.budget_s:g}: {profile.omitted}")
    return lines


def _coefficient_lines(fit: LatencyFit, ordinary_fit: LatencyFit) -> list[str]:
    lines = [f"{'coefficient':<14}{'used':>12}   {'95 % interval':<26}{'plain least squares':>20}   95 % interval"]
    for place, name in enumerate(COEFFICIENTS):
        ours = f"{name:<14}{fit.coefficients[name]:>12.4g}   {_interval(fit, name):<26}"
        theirs = (
            f"{ordinary_fit.coefficients[name]:>20.4g}   {_interval(ordinary_fit, name)}"
            if place < NUM_PAPER_TERMS
            else f"{'-':>20}"
        )
        lines.append(ours + theirs)
    return lines


def _interval(fit: LatencyFit, name: str) -> str:
    low, high = fit.intervals[name]
    return f"[{low:.3g}, {high:.3g}]"


def _score_lines(fit: LatencyFit, ordinary_fit: LatencyFit) -> list[str]:
    lines = [f"{'':<30}{'R2':>8}{'adj. R2':>9}{'MAPE':>8}{'MAE ms':>9}{'RMSE ms':>9}{'max ms':>9}"]
    for label, each in (("used", fit), ("plain least squares", ordinary_fit)):
        for part, found in (("fitted", each.fitted), ("held out", each.held_out)):
            adjusted = "-" if found.adjusted_r2 is None else f"{found.adjusted_r2:.4f}"
            lines.append(
                f"{f'{label}, {part}':<30}{found.r2:>8.4f}{adjusted:>9}{found.mape:>8.1%}"
                f"{_ms_text(found.mae_s):>9}{_ms_text(found.rmse_s):>9}{_ms_text(found.max_s):>9}"
            )
    folds, gap = fit.folds, fit.fitted.r2 - fit.held_out.r2
    lines.append(
        f"cross-validation in {folds.folds} folds: R2 {folds.r2:.4f} ± {folds.r2_deviation:.4f}, "
        f"MAPE {folds.mape:.1%} ± {folds.mape_deviation:.1%}; R2 fitted minus held out {gap:.4f}"
    )
    return lines


def _category_lines(profile: ModelProfile) -> list[str]:
    fit, plain = profile.fit, profile.ordinary_fit
    names = dict.fromkeys((*CATEGORIES, *fit.fitted_mape, *fit.held_out_mape))
    lines = [f"{'MAPE by category':<30}{'fitted':>10}{'held out':>10}{'plain, held out':>18}"]
    for name in names:
        if name in fit.fitted_mape or name in fit.held_out_mape:
            found = (fit.fitted_mape.get(name), fit.held_out_mape.get(name), plain.held_out_mape.get(name))
            known, unseen, theirs = ("-" if value is None else f"{value:.1%}" for value in found)
            lines.append(f"{name:<30}{known:>10}{unseen:>10}{theirs:>18}")
    return lines


def _count_text(count: int | None) -> str:
    return "an unknown number of" if count is None else str(count)


def _share_text(share: float | None) -> str:
    return "not known" if share is None else f"{share:.0%}"


def _ms_text(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


_COLOURS = ("#3366cc", "#d9572b", "#2f9e6e", "#8b5cc7", "#c79a1b", "#5f6b7a", "#c2417c", "#1fa3b8")


def draw_figures(profile: ModelProfile, folder: Path) -> None:
    """Writes NAME_predicted.png and NAME_residuals.png, with PDF and SVG; held-out configurations are crosses."""
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    x, seconds = design_matrix(profile.timings)
    predicted = x @ np.array([profile.fit.coefficients[name] for name in COEFFICIENTS])
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    _plot_predicted(figure.add_subplot(), profile, 1e3 * seconds, 1e3 * predicted)
    save_figure(figure, folder / f"{profile.name}_predicted.png", f"{profile.name}: predicted against measured")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    _plot_residuals(figure.add_subplot(), profile, 1e3 * seconds, 100 * (predicted / seconds - 1))
    save_figure(figure, folder / f"{profile.name}_residuals.png", f"{profile.name}: error of the prediction")


def _plot_predicted(axes: "Axes", profile: ModelProfile, measured_ms: Array, predicted_ms: Array) -> None:
    ends = [float(measured_ms.min()), float(measured_ms.max())]
    axes.plot(ends, ends, color="#9aa5b1", linewidth=1)
    _scatter(axes, profile, measured_ms, predicted_ms)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")


def _plot_residuals(axes: "Axes", profile: ModelProfile, measured_ms: Array, error_percent: Array) -> None:
    axes.axhline(0, color="#9aa5b1", linewidth=1)
    _scatter(axes, profile, measured_ms, error_percent)
    axes.set(xscale="log", xlabel="measured, ms", ylabel="predicted too long (+) or too short (-), %")


def _scatter(axes: "Axes", profile: ModelProfile, x: Array, y: Array) -> None:
    for category, colour, rows in _category_groups(profile):
        for held_out, marker in ((False, "o"), (True, "x")):
            of_use = [i for i in rows if profile.timings[i].shape.held_out == held_out]
            label = f"{category}{', held out' if held_out else ''}"
            if of_use:
                axes.scatter(x[of_use], y[of_use], s=16, color=colour, marker=marker, linewidths=1, label=label)
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)


def _category_groups(profile: ModelProfile) -> Iterator[tuple[str, str, list[int]]]:
    categories = dict.fromkeys(timing.shape.category for timing in profile.timings)
    for place, category in enumerate(categories):
        rows = [i for i, timing in enumerate(profile.timings) if timing.shape.category == category]
        yield category, _COLOURS[place % len(_COLOURS)], rows
