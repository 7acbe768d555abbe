"""The tables of a leaderboard: policies over all settings, then each setting with intervals and paired tests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import Any

from pipeline.answers.board import Board
from pipeline.answers.intervals import Measured, measure, read_by_prompt
from pipeline.answers.ranking import Row, objective_values, pareto_front
from pipeline.report.prompt_sums import PromptSums, prompt_sums
from pipeline.report.records import RequestRecord
from pipeline.report.statistics import holm, paired_p_value
from pipeline.report.table import LabelledTexts, ReportPart, Table, format_number

SERVICE, COST = "latency/service_s_per_token/mean", "cost/usd_per_million_tokens"
COLUMNS = (
    ("TTFT p90, ms", "latency/ttft_s/p90", 1e3),
    ("TBT, ms", "latency/tbt_s/mean", 1e3),
    ("service a token, ms", SERVICE, 1e3),
    ("cost, USD/M tokens", COST, 1.0),
    ("device, J a token", "resources/device_total_j_per_token", 1.0),
    ("accept", "speculation/acceptance_length_with_bonus", 1.0),
)
BASELINE = "cloud_centric"
LOSSLESS, LOSSY = "the cloud model's own text", "other text, whose quality is not in this table"
LEVEL = 0.05
_PERMUTATIONS = 1999


@dataclass(frozen=True)
class Place:
    """A policy's place in one setting."""

    setting: str
    row: Row
    measured: Mapping[str, Measured]
    on_front: bool
    """True if no policy of its kind, lossless or lossy, is both faster and cheaper there."""
    ties: frozenset[str]
    """Measures in which it is the best of its kind there, or not significantly different from the best (paired
    permutation test over prompts, Holm's correction over the policies of the kind).
    """

    @property
    def policy(self) -> str:
        return self.row.candidate.policy

    @property
    def kind(self) -> str:
        return LOSSLESS if self.row.lossless else LOSSY


@dataclass(frozen=True)
class BoardReport:
    parts: tuple[ReportPart, ...]
    places: tuple[Place, ...]
    records: list[dict[str, Any]]
    """A record for each policy and setting."""


def board_report(board: Board, command: str, seeds: int, requests: int) -> BoardReport:
    """The board as tables and as records."""
    places = [place for name, rows in board.rows.items() for place in _places(name, rows)]
    settings = [name for name, rows in board.rows.items() if rows]
    parts: list[ReportPart] = ["leaderboard", _overall(places, settings)]
    for name in settings:
        own = [place for place in places if place.setting == name]
        setting = board.settings[name]
        parts += [f"{setting.title} ({' '.join(setting.words)})", _setting_table(own)]
    facts = [
        (
            "cells",
            f"{sum(len(place.row.cells) for place in places)}; {requests} requests each, {seeds} seeds; {command}",
        ),
        ("*", "the best of its kind there, or not significantly different from it (paired permutation test, Holm)"),
        ("front", "no policy of its kind there is both faster (service a token) and cheaper"),
        ("kinds", f"{LOSSLESS}; {LOSSY}"),
        *_left_out(board),
    ]
    return BoardReport((*parts, LabelledTexts(tuple(facts))), tuple(places), [_record(place) for place in places])


def _places(setting: str, rows: Sequence[Row]) -> Iterator[Place]:
    """The rows of a setting, lossless ones first. A faster lossy row is no better: its text is another one."""
    for lossless in (True, False):
        yield from _places_of_kind(setting, [row for row in rows if row.lossless == lossless])


def _places_of_kind(setting: str, rows: Sequence[Row]) -> Iterator[Place]:
    prompts = {id(row): read_by_prompt(row.artifacts) for row in rows}
    front = pareto_front([objective_values(row, (SERVICE, COST)) for row in rows])
    sums = {id(row): _sums(row, prompts[id(row)]) for row in rows}
    ties = {key: _ties(key, rows, sums) for key in (SERVICE, COST)}
    for row, best in zip(rows, front, strict=True):
        metrics = row.metrics
        found = {key: measure(key, metrics[key], prompts[id(row)]) for _, key, _ in COLUMNS if key in metrics}
        own = frozenset(key for key, names in ties.items() if row.candidate.policy in names)
        yield Place(setting, row, found, best, own)


def _sums(row: Row, by_prompt: Mapping[str, list[RequestRecord]]) -> dict[str, PromptSums]:
    metrics = row.metrics
    found = {key: prompt_sums(key, metrics[key], by_prompt) for _, key, _ in COLUMNS if key in metrics}
    return {key: one for key, one in found.items() if one is not None}


def _ties(metric: str, rows: Sequence[Row], sums: Mapping[int, Mapping[str, PromptSums]]) -> set[str]:
    """The policies that are best in a metric, or not significantly worse."""
    known = [row for row in rows if metric in row.metrics]
    if not known:
        return set()
    best = min(known, key=lambda row: row.metrics[metric])
    others = [row for row in known if row is not best]
    p_values = holm([_p_value(sums[id(row)].get(metric), sums[id(best)].get(metric)) for row in others])
    return {
        best.candidate.policy,
        *(row.candidate.policy for row, p in zip(others, p_values, strict=True) if p > LEVEL),
    }


def _p_value(ours: PromptSums | None, theirs: PromptSums | None) -> float:
    """1 where the two cannot be paired."""
    if ours is None or theirs is None or ours.prompts != theirs.prompts:
        return 1.0
    return paired_p_value(ours.sums, theirs.sums, ours.combine, seed=0, permutations=_PERMUTATIONS)


def _overall(places: Sequence[Place], settings: Sequence[str]) -> Table:
    """A row for each policy: where it is best, and its geometric means beside cloud decoding."""
    rows = []
    for policy in dict.fromkeys(place.policy for place in places):
        own = [place for place in places if place.policy == policy]
        lossless = "yes" if all(place.row.lossless for place in own) else "no"
        counts = (sum(place.on_front for place in own), *(_times_best(key, own) for key in (SERVICE, COST)))
        ratios = (_relative(SERVICE, own, places), _relative(COST, own, places))
        rows.append((policy, lossless, f"{len(own)} of {len(settings)}", *map(str, counts), *ratios))
    rows.sort(key=lambda row: (row[1] == "no", -int(row[3]), -int(row[4]) - int(row[5]), row[0]))
    headings = ("policy", "lossless", "settings", "on the\nfront", "fastest", "cheapest", "service of\ndecoding's",
                "cost of\ndecoding's")  # fmt: skip
    return Table(headings, tuple(rows))


def _times_best(metric: str, places: Sequence[Place]) -> int:
    return sum(metric in place.ties for place in places)


def _relative(metric: str, own: Sequence[Place], places: Sequence[Place]) -> str:
    """The geometric mean over settings of a metric beside cloud decoding's in the same setting, with its range."""
    base = {place.setting: place.row.metrics.get(metric) for place in places if place.policy == BASELINE}
    ratios = [
        value / reference
        for place in own
        if (value := place.row.metrics.get(metric)) and (reference := base.get(place.setting))
    ]
    if not ratios:
        return "-"
    mean = exp(fmean(log(ratio) for ratio in ratios))
    return f"{format_number(mean)} ({format_number(min(ratios))} to {format_number(max(ratios))})"


def _setting_table(places: Sequence[Place]) -> Table:
    order = sorted(places, key=lambda place: (not place.row.lossless, place.row.metrics.get(SERVICE, float("inf"))))
    rows = [
        (
            place.policy,
            "yes" if place.row.lossless else "no",
            *(_cell(place, key, scale) for _, key, scale in COLUMNS),
            "yes" if place.on_front else "",
        )
        for place in order
    ]
    return Table(
        ("policy", "lossless", *(heading.replace(", ", ",\n") for heading, _, _ in COLUMNS), "front"), tuple(rows)
    )


def _cell(place: Place, key: str, scale: float) -> str:
    found = place.measured.get(key)
    if found is None:
        return "-"
    text = format_number(scale * found.value)
    if found.low is not None and found.high is not None:
        text = f"{text} [{format_number(scale * found.low)}, {format_number(scale * found.high)}]"
    return f"{text}*" if key in place.ties else text


def _left_out(board: Board) -> Iterator[tuple[str, str]]:
    """Policies that are missing in settings, by reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for (name, policy), reason in board.left_out.items():
        reasons.setdefault((policy, reason), []).append(board.settings[name].title)
    for (policy, reason), names in reasons.items():
        yield f"without {policy}", f"in {', '.join(names)}: {reason}"
    for name in board.rows:
        setting = board.settings[name]
        if setting.only:
            yield setting.title, f"compares {', '.join(setting.only)} only"


def _record(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {"setting": place.setting, "policy": place.policy, "lossless": place.row.lossless}
    for _, key, _ in COLUMNS:
        one = place.measured.get(key)
        found |= {key: one and one.value, f"{key}/low": one and one.low, f"{key}/high": one and one.high}
    return found | {"front": place.on_front, "best": sorted(place.ties)}


def page_text(found: BoardReport, command: str) -> str:
    """The board as a page of docs/."""
    from pipeline.report.table import markdown

    return (
        "# Leaderboard\n\nEvery policy in every setting that it can serve, on the same requests. Written by "
        f"`{command}`; not by hand.\n\n{markdown(found.parts[1:])}"
    )
