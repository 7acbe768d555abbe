"""The error of a simulation: the same workload is served for real, several times, and simulated."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from pipeline.report import figures
from pipeline.report.clock_errors import with_errors
from pipeline.report.records import Records
from pipeline.report.series_style import COLOURS
from pipeline.report.summary import summarise
from pipeline.report.table import LabelledTexts, ReportPart, Table, format_number, format_percent, plain_lines
from serving.metrics import definitions
from serving.metrics.definitions import MetricSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_METRICS = ("latency/ttft_s", "latency/tbt_s", "latency/end_to_end_s")
_TARGET_ERRORS = {"TTFT": 0.10, "TBT": 0.05, "end to end": 0.07}
"""The aimed relative errors of the means."""


@dataclass(frozen=True)
class ErrorRow:
    """One statistic of each real run and of the simulation; seconds, or tokens a second."""

    metric: str
    statistic: str
    real: tuple[float, ...]
    simulated: float

    @property
    def relative_error(self) -> float | None:
        """The error of the simulation over the mean of the real runs; None where that is 0."""
        return self.simulated / mean(self.real) - 1 if mean(self.real) else None

    @property
    def real_spread(self) -> float | None:
        """The largest distance of a real run from their mean, as a share of it; no simulation can be better. None where
        the mean is 0.
        """
        return max(abs(value / mean(self.real) - 1) for value in self.real) if mean(self.real) else None


def validate(out: Path, *, real: Mapping[str, Sequence[Path]], simulated: Mapping[str, Path]) -> None:
    """Writes validation.txt, validation.json, metrics.json and a figure for each kind of real run.

    Args:
        real: served artifacts by the runtime that made them, repeats of one workload.
        simulated: the simulation of each of them.

    Requests whose text differs in the simulation are counted, not left out.
    """
    parts: list[ReportPart] = []
    report: dict[str, object] = {}
    metrics: dict[str, float] = {}
    for name, folders in real.items():
        runs, model = [Records.read(folder) for folder in folders], Records.read(simulated[name])
        lines = list(_error_rows(runs, model))
        parts.append(f"simulated against {name}: {len(runs)} runs of {len(model.requests)} requests")
        parts += [LabelledTexts(tuple(_facts(runs, model))), _table(lines)]
        report[name] = [
            {**vars(line), "relative_error": line.relative_error, "real_spread": line.real_spread} for line in lines
        ]
        errors = {f"{name}/{line.metric}/{line.statistic}".replace(" ", "_"): line.relative_error for line in lines}
        metrics |= {key: error for key, error in errors.items() if error is not None}
        _draw(name, runs, model, out / "figures" / f"{name}.png")
    (out / "validation.txt").write_text("\n".join(plain_lines(parts)) + "\n", encoding="utf-8")
    (out / "validation.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    (out / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")


def _error_rows(runs: Sequence[Records], model: Records) -> Iterator[ErrorRow]:
    summaries = [summarise(run) for run in (*runs, model)]
    for metric in map(definitions.metric, _METRICS):
        for statistic in definitions.STATISTICS:
            key = f"{metric.key}/{statistic}"
            if all(key in summary.values for summary in summaries):
                *real, simulated = (summary.values[key] for summary in summaries)
                yield ErrorRow(metric.label, statistic, tuple(real), simulated)
    speeds = [summary.values["throughput/tokens_per_s"] for summary in summaries]
    yield ErrorRow("tokens/s", "mean", tuple(speeds[:-1]), speeds[-1])


def _table(lines: Sequence[ErrorRow]) -> Table:
    headings = ("", "", "real", "its spread", "simulated", "error", "aim")
    return Table(headings, tuple(map(_row, lines)), num_label_columns=2)


def _row(line: ErrorRow) -> tuple[str, ...]:
    scale = 1.0 if line.metric == "tokens/s" else 1e3
    aim = _TARGET_ERRORS.get(line.metric) if line.statistic == "mean" else None
    unit = "" if line.metric == "tokens/s" else ", ms"
    return (
        line.metric + unit,
        line.statistic,
        format_number(scale * mean(line.real)),
        "-" if line.real_spread is None else f"± {format_percent(line.real_spread)}",
        format_number(scale * line.simulated),
        "-" if line.relative_error is None else f"{100 * line.relative_error:+.1f} %",
        f"± {format_percent(aim)}" if aim else "",
    )


def _facts(runs: Sequence[Records], model: Records) -> Iterator[tuple[str, str]]:
    same = _same_text(runs[0], model)
    yield from (("note", text) for text in dict.fromkeys(run.meta.transport_check for run in runs) if text)
    yield "text", f"{same} of {len(model.requests)} requests have the same text in the simulation"
    yield from ((side, with_errors(timing)) for side, timing in model.meta.timing.items())


def _same_text(run: Records, model: Records) -> int:
    texts = {request.request: request.tokens for request in model.requests}
    return sum(texts.get(request.request) == request.tokens for request in run.requests)


def _draw(name: str, runs: Sequence[Records], model: Records, path: Path) -> None:
    """Distributions, the real runs pale and the simulation dark."""
    figure = figures.create_figure(10.0, 3.2)
    for place, metric in enumerate(map(definitions.metric, _METRICS), 1):
        axes = figure.add_subplot(1, len(_METRICS), place)
        figures.style_axes(axes, f"{metric.label}, ms", "share of requests")
        for run in runs:
            _draw_ecdf(axes, metric, run, figures.MUTED_COLOUR, "real")
        _draw_ecdf(axes, metric, model, COLOURS[0], "simulated")
    figures.save_figure(figure, path, f"{name} (grey) and its simulation (blue)")


def _draw_ecdf(axes: "Axes", metric: MetricSpec, run: Records, colour: str, label: str) -> None:
    assert isinstance(metric.formula, definitions.Distribution)
    values = (getattr(request, metric.formula.attribute) for request in run.requests)
    ranked = sorted(1e3 * value for value in values if value is not None)
    axes.step(ranked, [(i + 1) / len(ranked) for i in range(len(ranked))], where="post", color=colour, label=label)
