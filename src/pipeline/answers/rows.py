"""Rows of an answer: a candidate with its cells, one a seed, and the table that shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from pipeline.answers.candidates import Candidate
from pipeline.answers.cell import CellResult
from pipeline.answers.evaluation import Evaluator
from pipeline.answers.percentiles import estimate_percentile, is_percentile
from pipeline.report.estimate import Estimate, estimate, pool
from pipeline.report.export.results import ResultCell, ResultColumn, ResultRow, ResultTable, format_cell
from pipeline.report.export.significance import Judgement
from pipeline.report.export.tables import metric_column
from pipeline.report.prompt_sums import prompt_sums, requests_by_prompt
from pipeline.report.summary import QUALITY
from pipeline.report.table import Table
from pipeline.report.text_reference import RequestsByPrompt
from serving.metrics import definitions

SERVICE, COST = "latency/service_s_per_token/mean", "cost/usd_per_million_tokens"
COLUMNS = (
    "latency/ttft_s/p90", "latency/tbt_s/mean", SERVICE, COST, "resources/device_total_j_per_token",
    "speculation/acceptance_length_with_bonus", QUALITY,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A candidate that was served. `quality` is what a run on text measured; None: no text was asked for."""

    candidate: Candidate
    cells: tuple[CellResult, ...]
    quality: Mapping[str, float] | None = None

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Means over the cells, with the quality."""
        shared: set[str] = set.intersection(*(set(cell.metrics) for cell in self.cells))
        own = {key: fmean(cell.metrics[key] for cell in self.cells) for key in sorted(shared)}
        return {**own, **(self.quality or {})}

    @property
    def lossless(self) -> bool:
        return all(cell.lossless for cell in self.cells)


def serve_rows(
    evaluator: Evaluator, name: str, asked: Sequence[tuple[Candidate, Sequence[Sequence[str]]]]
) -> list[Row | str]:
    """A row for each candidate with the words of its cells, or why one of them could not be served."""
    results = iter(evaluator.evaluate(name, [words for _, cells in asked for words in cells]))
    found: list[Row | str] = []
    for candidate, cells in asked:
        own = [next(results) for _ in cells]
        problem = next((one.problem for one in own if one.problem), None)
        found.append(problem or Row(candidate, tuple(own)))
    return found


def rows_table(
    name: str, title: str, rows: Sequence[Row], groups: Sequence[str] = (), remarks: Mapping[str, Sequence[str]] = {}
) -> ResultTable:
    """The rows with intervals over seeds and prompts. `groups` has each row's; `remarks` are columns of texts."""
    keys = [key for key in COLUMNS if any(key in row.metrics for row in rows)]
    columns = (*map(metric_column, keys), *(ResultColumn(heading) for heading in remarks))
    found = []
    for place, row in enumerate(rows):
        requests = [requests_by_prompt(cell.artifact) for cell in row.cells]
        texts = [ResultCell(text=own[place]) for own in remarks.values()]
        cells = (*(_cell(row, key, requests) for key in keys), *texts)
        count = sum(len(own) for by_prompt in requests for own in by_prompt.values())
        group = groups[place] if groups else ""
        found.append(ResultRow((row.candidate.described,), cells, group, num_requests=count))
    return ResultTable(name, title, ("policy",), columns, tuple(found))


def _cell(row: Row, key: str, requests: Sequence[RequestsByPrompt]) -> ResultCell:
    metric, value = definitions.find(key), row.metrics.get(key)
    if metric is None or value is None:
        return ResultCell(text="-")
    if row.quality is not None and key in row.quality:
        return ResultCell(metric.scale * value)
    values = [cell.metrics[key] for cell in row.cells]
    sums = [prompt_sums(key, one, own) for one, own in zip(values, requests, strict=True)]
    seeds = [
        estimate_percentile(key, one, str(seed), requests[seed])
        if is_percentile(key)
        else estimate(one, str(seed), sums[seed])
        for seed, one in enumerate(values)
    ]
    found: Estimate | None = pool(seeds)
    assert found is not None
    return ResultCell.of(found.scaled(metric.scale), sums[0] if len(sums) == 1 else None)


def is_tie(found: Judgement, row: int, column: int) -> bool:
    """True for the best of its group, and for what was tested and does not differ significantly from it."""
    place = (row, column)
    return place in found.best or (place in found.p_values and not found.differs(row, column))


def printed_table(table: ResultTable, found: Judgement) -> Table:
    """The table for a terminal and for Markdown; a star marks ties for the best of a group."""
    headings = (*table.label_heads, *(column.heading.replace(", ", ",\n") for column in table.columns))
    rows = []
    for place, row in enumerate(table.rows):
        texts = [
            f"{format_cell(cell)}*" if is_tie(found, place, at) else format_cell(cell)
            for at, cell in enumerate(row.cells)
        ]
        rows.append((*row.labels, *texts))
    return Table(headings, tuple(rows), len(table.label_heads))
