"""The report of a search: a sentence, tables, what another policy takes over, and the front of two objectives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.answers.choose import Answer
from pipeline.answers.intervals import Measured, measure, read_by_prompt
from pipeline.answers.ranking import Row, broken, excess, objective_values, pareto_front
from pipeline.report import figures
from pipeline.report.figures import PlotPoint
from pipeline.report.series_style import series_styles
from pipeline.report.table import LabelledTexts, ReportPart, Table, format_number
from serving.metrics import definitions

COLUMNS = (
    ("TTFT p90,\nms", "latency/ttft_s/p90", 1e3),
    ("TBT p90,\nms", "latency/tbt_s/p90", 1e3),
    ("service,\nms a token", "latency/service_s_per_token/mean", 1e3),
    ("cost, USD\nM tokens", "cost/usd_per_million_tokens", 1.0),
    ("device, J\na token", "resources/device_total_j_per_token", 1.0),
    ("accept", "speculation/acceptance_length_with_bonus", 1.0),
)
_SHOWN_ROWS = 10


@dataclass(frozen=True)
class AnswerReport:
    """What is printed and written of an answer."""

    sentence: str
    parts: tuple[ReportPart, ...]
    data: dict[str, Any]


def answer_report(found: Answer, words: Sequence[str], name: str) -> AnswerReport:
    """The report of an answer to a command with these words, whose policy is called `name`."""
    sentence = _sentence(found)
    tables = {id(row): _measured(row) for row in (*found.rows[:_SHOWN_ROWS], *found.held_out)}
    parts: list[ReportPart] = [
        f"{name}: {found.claimed.candidate.described}",
        LabelledTexts(tuple(_facts(found, words, sentence))),
        _table("chosen from", found, found.rows[:_SHOWN_ROWS], tables),
        _table("held-out requests", found, found.held_out, tables),
        LabelledTexts(tuple(_takeovers(found))),
        LabelledTexts(tuple(_left_out(found))),
    ]
    return AnswerReport(sentence, tuple(part for part in parts if not _is_empty(part)), _data(found, sentence, words))


def _is_empty(part: ReportPart) -> bool:
    return isinstance(part, LabelledTexts) and not part.pairs


def _sentence(found: Answer) -> str:
    """The answer in one sentence."""
    row, require = found.claimed, found.question.require
    values = ", ".join(_value(row, key) for key in found.question.objective)
    if excess(row, require) > 0:
        worst = max(broken(row, require), key=lambda one: one[1])
        return (
            f"No candidate keeps the requirements; {row.candidate.described} comes nearest ({worst[0]}), with {values}."
        )
    return f"{row.candidate.described} keeps the requirements with {values}."


def _value(row: Row, metric: str) -> str:
    found, value = definitions.find(metric), row.metrics.get(metric)
    assert found is not None
    return f"{metric} {format_number(value)} {found.unit}" if value is not None else f"{metric} not known"


def _facts(found: Answer, words: Sequence[str], sentence: str) -> Iterator[tuple[str, str]]:
    question, sealed, best = found.question, found.sealed, found.best_afterwards
    yield "answer", sentence
    yield "asked", f"{question.require.describe()}; {' '.join(words) or 'the default testbed and workload'}"
    yield "searched", f"{len(found.tried)} candidates of {len({row.candidate.policy for row in found.tried})} policies"
    first = question.objective[0]
    claimed, kept = objective_values(found.claimed, [first])[0], objective_values(sealed, [first])[0]
    held = "; ".join(text for text, _ in broken(sealed, question.require)) or "all requirements are kept"
    yield "held out", f"{first} {format_number(kept)} where {format_number(claimed)} was claimed; {held}"
    if excess(best, question.require) == 0:
        regret = kept / objective_values(best, [first])[0] - 1 if kept else 0.0
        yield (
            "regret",
            f"{100 * max(0.0, regret):.1f} % of {first}; best on held-out requests: {best.candidate.described}",
        )


def _measured(row: Row) -> dict[str, Measured]:
    by_prompt = read_by_prompt(row.artifacts)
    metrics = row.metrics
    return {key: measure(key, metrics[key], by_prompt) for _, key, _ in COLUMNS if key in metrics}


def _table(title: str, found: Answer, rows: Sequence[Row], tables: dict[int, dict[str, Measured]]) -> Table:
    cells = [
        (row.candidate.described, *(_cell(tables[id(row)].get(key), scale) for _, key, scale in COLUMNS),
         "; ".join(text for text, _ in broken(row, found.question.require)) or "-")
        for row in rows
    ]  # fmt: skip
    return Table((title, *(heading for heading, _, _ in COLUMNS), "breaks"), tuple(cells))


def _cell(measured: Measured | None, scale: float) -> str:
    if measured is None:
        return "-"
    value = format_number(scale * measured.value)
    if measured.low is None or measured.high is None:
        return value
    return f"{value} [{format_number(scale * measured.low)}, {format_number(scale * measured.high)}]"


def _takeovers(found: Answer) -> Iterator[tuple[str, str]]:
    """For each thing that was varied, which policy is best at which value."""
    for name, steps in found.takeovers.items():
        runs: list[tuple[str, list[str]]] = []
        for value, rows in steps:
            best = rows[0].candidate.policy
            if excess(rows[0], found.question.require) > 0:
                best = "no policy keeps the requirements"
            if runs and runs[-1][0] == best:
                runs[-1][1].append(value)
            else:
                runs.append((best, [value]))
        yield f"by {name.replace('_', ' ')}", "; ".join(f"{best} at {', '.join(values)}" for best, values in runs)


def _left_out(found: Answer) -> Iterator[tuple[str, str]]:
    yield from ((f"without {name}", reason) for name, reason in found.left_out.items())
    for reason, count in found.failed.items():
        yield f"{count} candidates failed", reason


def _data(found: Answer, sentence: str, words: Sequence[str]) -> dict[str, Any]:
    """The answer as plain data, for scripts."""
    return {
        "answer": sentence,
        "words": list(words),
        "require": found.question.require.describe(),
        "objective": list(found.question.objective),
        "rows": [_row_data(row, found) for row in found.rows],
        "held_out": [_row_data(row, found) for row in found.held_out],
        "takeovers": {
            name: {value: [_row_data(row, found) for row in rows] for value, rows in steps}
            for name, steps in found.takeovers.items()
        },
        "left_out": dict(found.left_out),
    }


def _row_data(row: Row, found: Answer) -> dict[str, Any]:
    metrics = row.metrics
    kept = [key for _, key, _ in COLUMNS] + [*found.question.objective, "quality/mean"]
    return {
        "candidate": row.candidate.described,
        "words": list(row.candidate.words),
        "metrics": {key: metrics[key] for key in dict.fromkeys(kept) if key in metrics},
        "breaks": [text for text, _ in broken(row, found.question.require)],
    }


def draw_front(found: Answer, path: Path) -> Path:
    """All candidates of the first rung by the first two objectives, and the front of those that keep the requirements.

    With one objective the second axis is the service time a token.
    """
    objective = (*found.question.objective, "latency/service_s_per_token/mean")[:2]
    sheet = figures.create_figure(6.6, 4.4)
    axes = sheet.add_subplot(1, 1, 1)
    styles = series_styles({row.candidate.policy: row.candidate.policy for row in found.tried})
    for policy, style in styles.items():
        points = [objective_values(row, objective) for row in found.tried if row.candidate.policy == policy]
        known = [point for point in points if all(value < float("inf") for value in point)]
        marks = [PlotPoint(x, y, y, y) for x, y in known]
        figures.draw_points(axes, [x for x, _ in known], marks, style, policy, markersize=5.0, linewidth=0.0)
    good = [objective_values(row, objective) for row in found.tried if excess(row, found.question.require) == 0]
    front = sorted(point for point, best in zip(good, pareto_front(good), strict=True) if best)
    axes.step([x for x, _ in front], [y for _, y in front], where="post", color=figures.MUTED_COLOUR, linewidth=1.2)
    x, y = (f"{key} ({definitions.find(key).unit})" for key in objective)  # type: ignore[union-attr]
    figures.style_axes(axes, x, y)
    figures.add_legend(sheet)
    return figures.save_figure(
        sheet, path, "Candidates of the first rung; the line: the front of those that keep the requirements"
    )
