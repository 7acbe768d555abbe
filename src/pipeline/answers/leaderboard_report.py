"""What a leaderboard says: policies over all settings, then each setting with intervals and paired tests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log
from statistics import fmean

from pipeline.answers.front import objective_values, pareto_front
from pipeline.answers.rows import COST, SERVICE, Row, is_tie, printed_table, rows_table
from pipeline.report.export.results import ResultTable
from pipeline.report.export.significance import Judgement, judge
from pipeline.report.table import LabelledTexts, ReportPart, Table, format_number, markdown

BASELINE = "cloud_centric"
LOSSLESS, LOSSY = "the cloud model's own text", "another text"


@dataclass(frozen=True)
class Setting:
    """A testbed with its network, load and lengths: the `words` of its cells.

    `only` are the policies that are compared there; empty: those of the board. `own` are further words of single
    policies there.
    """

    title: str
    words: tuple[str, ...]
    only: tuple[str, ...] = ()
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SettingResult:
    """The rows of a setting, lossless ones first. Each row is compared with rows of its kind: a faster lossy row is no
    better than a lossless one, because its text is another one.
    """

    name: str
    setting: Setting
    rows: tuple[Row, ...]

    @cached_property
    def on_front(self) -> list[bool]:
        """True for each row that no other of its kind beats in service time and cost."""
        found: list[bool] = []
        for lossless in (True, False):
            found += pareto_front([objective_values(r, (SERVICE, COST)) for r in self.rows if r.lossless == lossless])
        return found

    @cached_property
    def table(self) -> ResultTable:
        kinds = [LOSSLESS if row.lossless else LOSSY for row in self.rows]
        front = ["yes" if best else "" for best in self.on_front]
        return rows_table(self.name, self.setting.title, self.rows, kinds, {"front": front})

    @cached_property
    def judgement(self) -> Judgement:
        return judge(self.table)

    def has_rivals(self, place: int) -> bool:
        """True if there is another row of its kind: without one a row wins nothing."""
        return sum(row.lossless == self.rows[place].lossless for row in self.rows) > 1

    def is_best(self, place: int, metric: str) -> bool:
        """True if the row is the best of its kind in the metric, alone or with the same figure as it, or not
        significantly different from the best; False for the only row of its kind.
        """
        if not self.has_rivals(place):
            return False
        at = next((at for at, column in enumerate(self.table.columns) if column.metric == metric), None)
        own = self.table.rows[place]
        if at is None or own.cells[at].value is None:
            return False
        values = [row.cells[at].value for row in self.table.rows if row.group == own.group]
        least = min(value for value in values if value is not None)
        return own.cells[at].value == least or is_tie(self.judgement, place, at)


@dataclass(frozen=True)
class Board:
    """The results of all settings, and the cells that are not there with the reason."""

    results: tuple[SettingResult, ...]
    left_out: Mapping[tuple[str, str], str]
    """(title of the setting, policy) -> why it is not there."""


def board_parts(board: Board, remarks: Sequence[tuple[str, str]]) -> list[ReportPart]:
    """The board in reading order; `remarks` stand below its tables."""
    parts: list[ReportPart] = ["leaderboard", overall_table(board)]
    for result in board.results:
        title = f"{result.setting.title} ({' '.join(result.setting.words)})"
        parts += [title, printed_table(_by_kind(result.table), result.judgement)]
    return [*parts, LabelledTexts(tuple(remarks))]


def _by_kind(table: ResultTable) -> ResultTable:
    """The table with the group of each row as a label."""
    rows = tuple(replace(row, labels=(*row.labels, "yes" if row.group == LOSSLESS else "no")) for row in table.rows)
    return replace(table, label_heads=(*table.label_heads, "lossless"), rows=rows)


def overall_table(board: Board) -> Table:
    """A row for each policy: where it is best, and its geometric means beside cloud decoding."""
    places: dict[str, list[tuple[SettingResult, int]]] = {}
    for result in board.results:
        for place, row in enumerate(result.rows):
            places.setdefault(row.candidate.policy, []).append((result, place))
    rows = []
    for policy, own in places.items():
        lossless = "yes" if all(result.rows[place].lossless for result, place in own) else "no"
        counts = (
            sum(result.on_front[place] and result.has_rivals(place) for result, place in own),
            *(sum(result.is_best(place, key) for result, place in own) for key in (SERVICE, COST)),
        )
        ratios = (_relative(SERVICE, own), _relative(COST, own))
        rows.append((policy, lossless, f"{len(own)} of {len(board.results)}", *map(str, counts), *ratios))
    rows.sort(key=lambda row: (row[1] == "no", -int(row[3]), -int(row[4]) - int(row[5]), row[0]))
    headings = ("policy", "lossless", "settings", "on the\nfront", "fastest", "cheapest", "service of\ndecoding's",
                "cost of\ndecoding's")  # fmt: skip
    return Table(headings, tuple(rows))


def _relative(metric: str, own: Sequence[tuple[SettingResult, int]]) -> str:
    """The geometric mean over settings of a metric beside cloud decoding's in the same setting, with its range."""
    ratios = []
    for result, place in own:
        base = next((row for row in result.rows if row.candidate.policy == BASELINE), None)
        value, reference = (row.metrics.get(metric) if row else None for row in (result.rows[place], base))
        if value and reference:
            ratios.append(value / reference)
    if not ratios:
        return "-"
    mean = exp(fmean(map(log, ratios)))
    return f"{format_number(mean)} ({format_number(min(ratios))} to {format_number(max(ratios))})"


def notes(board: Board, command: str, requests: int, seeds: int) -> Iterator[tuple[str, str]]:
    """What the marks mean, and what is missing."""
    cells = sum(len(row.cells) for result in board.results for row in result.rows)
    yield "cells", f"{cells}; {requests} requests each, {seeds} seeds; {command}"
    tested = "or not significantly different from it (paired tests, Holm's correction)"
    yield "*", f"the best of its kind there, {tested}; none where a kind has one row, or all rows are alike"
    yield "front", "no policy of its kind there is both faster (service a token) and cheaper"
    yield (
        "on the front, fastest, cheapest",
        "settings where the policy is so; where a kind has one row, it is not counted",
    )
    if not any(row.candidate.policy == BASELINE for result in board.results for row in result.rows):
        yield "of decoding's", f"needs {BASELINE} on the board"
    yield "kinds", f"{LOSSLESS}, and {LOSSY}: its quality is not measured here"
    yield from left_out_notes(board.left_out)
    for result in board.results:
        if result.setting.only:
            yield result.setting.title, f"compares {', '.join(result.setting.only)} only"
        for policy, words in result.setting.own.items():
            yield f"{policy} there", f"{result.setting.title}: {' '.join(words)}"


def left_out_notes(left_out: Mapping[tuple[str, str], str]) -> Iterator[tuple[str, str]]:
    """The settings in which a policy is missing, with the reason; `left_out` has it by setting and policy."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for (title, policy), reason in left_out.items():
        reasons.setdefault((policy, reason), []).append(title)
    for (policy, reason), titles in reasons.items():
        yield f"without {policy}", f"in {', '.join(titles)}: {reason}"


def page_text(parts: Sequence[ReportPart], command: str) -> str:
    """The board as a page of docs/."""
    return (
        "# Leaderboard\n\nEvery listed policy in every setting that it can serve, on the same requests; a setting may "
        "name the policies that it compares (`only`). Written by "
        f"`{command}`; not by hand.\n\n{markdown(parts[1:])}"
    )
