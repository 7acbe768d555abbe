"""The report of a search: a sentence, tables, and what another policy takes over."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from pipeline.answers.choose import Answer
from pipeline.answers.front import objective_values
from pipeline.answers.ranking import broken, excess
from pipeline.answers.requirements import with_unit
from pipeline.answers.rows import COLUMNS, Row, printed_table, rows_table
from pipeline.report.export.results import ResultTable
from pipeline.report.export.significance import judge
from pipeline.report.table import LabelledTexts, ReportPart, format_number

_SHOWN_ROWS = 10


@dataclass(frozen=True)
class AnswerReport:
    """What is printed and written of an answer."""

    sentence: str
    tables: tuple[ResultTable, ...]
    parts: tuple[ReportPart, ...]
    data: dict[str, Any]


def answer_report(found: Answer, words: Sequence[str], name: str) -> AnswerReport:
    """The report of an answer to a command with these words, under the name of the chosen policy."""
    sentence = _sentence(found)
    tables = (
        _table("candidates", "chosen from", found, found.rows[:_SHOWN_ROWS]),
        _table("held_out", "on held-out requests", found, found.held_out),
    )
    parts: list[ReportPart] = [
        f"{name}: {found.claimed.candidate.described}",
        LabelledTexts(tuple(_facts(found, words, sentence))),
    ]
    for table in tables:
        parts += [table.title, printed_table(table, judge(table))]
    more = (*_takeovers(found), *_left_out(found))
    parts += [LabelledTexts(more)] if more else []
    return AnswerReport(sentence, tables, tuple(parts), _data(found, sentence, words))


def _sentence(found: Answer) -> str:
    """The answer in one sentence."""
    row, require = found.claimed, found.question.require
    values = ", ".join(_value(row, key) for key in found.question.objective)
    if excess(row, require) > 0:
        worst = max(broken(row, require), key=lambda one: one[1])
        return f"No candidate keeps the requirements; {row.candidate.described} comes nearest ({worst[0]}), {values}."
    return f"{row.candidate.described} keeps the requirements with {values}."


def _value(row: Row, metric: str) -> str:
    value = row.metrics.get(metric)
    return f"{metric} {with_unit(format_number(value), metric)}" if value is not None else f"{metric} not known"


def _facts(found: Answer, words: Sequence[str], sentence: str) -> Iterator[tuple[str, str]]:
    require = found.question.require
    yield "answer", sentence
    yield "asked", f"{require.describe()}; {' '.join(words) or 'the default testbed and workload'}"
    yield "searched", f"{len(found.tried)} candidates of {len({row.candidate.policy for row in found.tried})} policies"
    first, chosen = found.question.objective[0], found.chosen_held_out
    if chosen is None:
        yield "held out", "the chosen row could not be served on held-out requests"
        return
    kept, best = objective_values(chosen, [first])[0], found.held_out[0]
    held = "; ".join(text for text, _ in broken(chosen, require)) or "all requirements are kept"
    yield "held out", f"{_value(chosen, first)} where {_value(found.claimed, first)} was claimed; {held}"
    least = objective_values(best, [first])[0]
    if excess(best, require) == 0 and 0 < least < inf:
        yield (
            "regret",
            f"{100 * max(0.0, kept / least - 1):.1f} % of {first}; the best there: {best.candidate.described}",
        )


def _table(name: str, title: str, found: Answer, rows: Sequence[Row]) -> ResultTable:
    breaks = ["; ".join(text for text, _ in broken(row, found.question.require)) or "-" for row in rows]
    return rows_table(name, title, rows, remarks={"breaks": breaks})


def _takeovers(found: Answer) -> Iterator[tuple[str, str]]:
    """For each thing that was varied, which policy is best at which value; for another, why it was not."""
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
    yield from ((f"by {name.replace('_', ' ')}", reason) for name, reason in found.not_varied.items())


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
    shown = dict.fromkeys([*COLUMNS, *found.question.objective])
    return {
        "candidate": row.candidate.described,
        "words": list(row.candidate.words),
        "metrics": {key: row.metrics[key] for key in shown if key in row.metrics},
        "breaks": [text for text, _ in broken(row, found.question.require)],
    }
