"""profile.txt: what was measured and how far it can be trusted, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from serving.hardware.latency import COEFFICIENTS
from training.latency.fit import Fit
from training.latency.measured import POINT, Measured
from training.latency.shape import CATEGORIES
from training.latency.solve import PAPER

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
