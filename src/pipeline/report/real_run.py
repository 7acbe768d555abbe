"""What a real run checks: predictions written down before the runs, and their errors beside the spread of the repeats.

predictions.json    {written, values: {policy: {metric: number}}, timing}
real_run.json       {written, began, ended, rows: [{policy, metric, predicted, measured, error, spread, exceeds}]}
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.report.clock_errors import with_errors
from pipeline.report.records import Records
from pipeline.report.summary import summarise
from pipeline.report.table import LabelledTexts, ReportPart, Table, format_metric, plain_lines
from serving.metrics import definitions

PREDICTIONS_FILE = "predictions.json"
RUNS_FILE = "runs.json"
"""Of the stage `serving.stages.serve_policies`."""


@dataclass(frozen=True)
class PredictedMetric:
    """One metric of one policy: its prediction, and what each repeat measured, in the metric's unit."""

    policy: str
    metric: str
    predicted: float
    measured: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.measured)

    @property
    def error(self) -> float | None:
        """The prediction over the median of the repeats, less 1; None where nothing was measured."""
        return self.predicted / self.median - 1 if self.median else None

    @property
    def spread(self) -> float | None:
        """The greatest distance of a repeat from their median, as a share of it; None of one repeat, or of nothing."""
        if len(self.measured) < 2 or not self.median:
            return None
        return max(abs(value / self.median - 1) for value in self.measured)

    @property
    def exceeds(self) -> bool | None:
        """True if the error is greater than the spread: the machine's own variation does not explain it."""
        return None if self.error is None or self.spread is None else abs(self.error) > self.spread


def check_write_predictions(*, metrics: Sequence[str], **_: object) -> None:
    """Raises ValueError for a metric that no run has."""
    for key in metrics:
        if definitions.find(key) is None:
            raise ValueError(
                f"stages.predictions.metrics: there is no metric {key!r}; `python -m pipeline show metrics` lists all"
            )


def write_predictions(out: Path, *, runs: Path, metrics: tuple[str, ...]) -> None:
    """Writes predictions.json and predictions.txt: `metrics` of the runs on the fitted clock, and the time of writing.

    Args:
        runs: of `serving.stages.serve_policies`, one of each policy.
    """
    records = {name: Records.read(runs / name / "0") for name in _policies(_read_runs(runs))}
    values = {name: _metrics(found, metrics) for name, found in records.items()}
    timing = {side: text for found in records.values() for side, text in found.meta.timing.items()}
    written = datetime.now(UTC).isoformat()
    node = {"written": written, "timing": timing, "values": values}
    (out / PREDICTIONS_FILE).write_text(json.dumps(node, indent=1) + "\n", encoding="utf-8")
    rows = [(name, _name(key), _printed(key, value)) for name, own in values.items() for key, value in own.items()]
    parts: list[ReportPart] = [
        f"predicted, written down at {_printed_time(written)}",
        Table(("policy", "metric", "predicted"), tuple(rows), num_label_columns=2),
    ]
    (out / "predictions.txt").write_text("\n".join(plain_lines(parts)) + "\n", encoding="utf-8")


def compare_real_run(out: Path, *, predictions: Path, predicted: Path, measured: Path) -> None:
    """Writes real_run.txt, real_run.json and metrics.json: predictions beside the real runs.

    Args:
        predictions: of `write_predictions`.
        predicted: the runs that it was made from; their texts are compared.
        measured: real runs, several of each policy.

    Raises ValueError for predictions that are not older than the first run.
    """
    known = json.loads((predictions / PREDICTIONS_FILE).read_text(encoding="utf-8"))
    runs = _read_runs(measured)
    _check_order(known["written"], runs)
    records = {name: _repeats(measured, name, runs) for name in _policies(runs)}
    rows = [row for name, own in records.items() for row in _rows(name, known["values"][name], own)]
    texts = {name: _same_texts(Records.read(predicted / name / "0"), own) for name, own in records.items()}
    parts: list[ReportPart] = [_title(records), LabelledTexts(tuple(_facts(known, runs, records, texts)))]
    parts += [_table(rows), LabelledTexts(_LEGEND)]
    (out / "real_run.txt").write_text("\n".join(plain_lines(parts)) + "\n", encoding="utf-8")
    (out / "real_run.json").write_text(json.dumps(_json(known, runs, rows), indent=1) + "\n", encoding="utf-8")
    (out / "metrics.json").write_text(json.dumps(_numbers(rows), indent=1) + "\n", encoding="utf-8")


def _read_runs(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / RUNS_FILE).read_text(encoding="utf-8"))
    return found


def _policies(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(run["policy"] for run in runs))


def _repeats(folder: Path, policy: str, runs: Sequence[Mapping[str, Any]]) -> list[Records]:
    return [Records.read(folder / policy / str(run["repeat"])) for run in runs if run["policy"] == policy]


def _metrics(records: Records, keys: Sequence[str]) -> dict[str, float]:
    values = summarise(records).values
    return {key: values[key] for key in keys if key in values}


def _check_order(written: str, runs: Sequence[Mapping[str, Any]]) -> None:
    first = min(run["began"] for run in runs)
    if datetime.fromisoformat(written) >= datetime.fromisoformat(first):
        raise ValueError(
            f"the predictions were written at {written}, and the first real run began at {first}: they predict "
            "nothing. They were built again, or the clock was set back; run the real runs again (force=[measured])"
        )


def _rows(policy: str, predicted: Mapping[str, float], repeats: Sequence[Records]) -> Iterator[PredictedMetric]:
    measured = [_metrics(each, tuple(predicted)) for each in repeats]
    for key, value in predicted.items():
        if all(key in own for own in measured):
            yield PredictedMetric(policy, key, value, tuple(own[key] for own in measured))


def _same_texts(predicted: Records, repeats: Sequence[Records]) -> str:
    expected = {request.request: request.tokens for request in predicted.requests}
    same = [sum(expected[request.request] == request.tokens for request in each.requests) for each in repeats]
    return f"{min(same)} of {len(expected)}"


def _title(records: Mapping[str, Sequence[Records]]) -> str:
    repeats = next(iter(records.values()))
    each = f"{len(repeats)} repeats of {len(repeats[0].requests)} requests"
    return f"predicted and measured: {len(records)} policies, {each}"


def _facts(
    known: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    records: Mapping[str, Sequence[Records]],
    texts: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    every = [each.meta for own in records.values() for each in own]
    yield from (("note", text) for text in dict.fromkeys(meta.transport_check for meta in every) if text)
    began, ended = min(run["began"] for run in runs), max(run["ended"] for run in runs)
    yield "predicted", f"written down at {_printed_time(known['written'])}"
    yield "measured", f"{len(runs)} runs from {_printed_time(began)} to {_printed_time(ended)}"
    loads = [run["load"] for run in runs]
    yield "load", f"{min(loads):.1f} to {max(loads):.1f} processes wanted a core as the runs began"
    yield from ((side, with_errors(timing)) for side, timing in known["timing"].items())
    yield "links", "; ".join(dict.fromkeys(link for meta in every for link in meta.raw.get("links", ())))
    yield "same text", "; ".join(f"{name} {text}" for name, text in texts.items())


_LEGEND = (
    ("measured", "the median of the repeats, then the least and the greatest; means are over the requests of a repeat"),
    ("error", "the prediction over that median, less 1"),
    (
        "spread",
        "the greatest distance of a repeat from their median; an error beyond it is more than the machine varies",
    ),
)


def _table(rows: Sequence[PredictedMetric]) -> Table:
    headings = ("policy", "metric", "predicted", "measured", "least to\ngreatest", "error\n%", "spread\n%", "beyond")
    return Table(headings, tuple(map(_cells, rows)), num_label_columns=2)


def _cells(row: PredictedMetric) -> tuple[str, ...]:
    least, greatest = (_printed(row.metric, find(row.measured)) for find in (min, max))
    return (
        row.policy,
        _name(row.metric),
        _printed(row.metric, row.predicted),
        _printed(row.metric, row.median),
        f"{least} to {greatest}",
        "-" if row.error is None else f"{100 * row.error:+.1f}",
        "-" if row.spread is None else f"± {100 * row.spread:.1f}",
        {True: "yes", False: "no", None: "-"}[row.exceeds],
    )


def _name(key: str) -> str:
    """Such as `TTFT, ms` of its mean, and `TTFT p90, ms`."""
    metric = definitions.find(key)
    assert metric is not None, key
    statistic = key.removeprefix(metric.key).replace("/mean", "").replace("/", " ")
    return f"{metric.label or metric.key}{statistic}, {metric.printed_unit}"


def _printed(key: str, value: float) -> str:
    metric = definitions.find(key)
    assert metric is not None, key
    return format_metric(metric, value)


def _printed_time(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S} UTC"


def _json(
    known: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], rows: Sequence[PredictedMetric]
) -> dict[str, Any]:
    times = {"written": known["written"], "began": min(run["began"] for run in runs)}
    found = [asdict(row) | {name: getattr(row, name) for name in ("error", "spread", "exceeds")} for row in rows]
    return {**times, "ended": max(run["ended"] for run in runs), "rows": found}


def _numbers(rows: Sequence[PredictedMetric]) -> dict[str, float]:
    """The error of each row, the median of all, and how many of them the spread does not explain."""
    errors = {f"error/{row.policy}/{row.metric}": row.error for row in rows if row.error is not None}
    beyond = sum(bool(row.exceeds) for row in rows)
    middle = {"median_error": median(map(abs, errors.values()))} if errors else {}
    return {**middle, "rows": float(len(errors)), "beyond_spread": float(beyond), **errors}
