"""A table of results as tidy CSV: one line a cell, with everything that is known of it."""

from collections.abc import Iterator

from pipeline.report.export.results import ResultTable
from pipeline.report.export.significance import Judgement
from pipeline.report.table import csv_text


def tidy_csv(table: ResultTable, found: Judgement) -> str:
    """Columns: table, group, the labels, column, metric, unit, better, value, low, high, text, reported, requests,
    prompts, seeds, by_seed, best, p_holm, differs, baseline, problem. Numbers are written in full.
    """
    return csv_text(list(_records(table, found)))


def _records(table: ResultTable, found: Judgement) -> Iterator[dict[str, object]]:
    for place, row in enumerate(table.rows):
        labels = {f"label {head}": label for head, label in zip(table.label_heads, row.labels, strict=True)}
        common = {"table": table.name, "group": row.group, **labels}
        if not row.cells:
            yield {**common, "problem": row.problem}
        for at, (column, cell) in enumerate(zip(table.columns, row.cells, strict=bool(row.cells))):
            other = (table.against or {}).get(place)
            yield {
                **common, "column": column.name, "metric": column.metric, "unit": column.unit, "better": column.better,
                "value": cell.value, "low": cell.low, "high": cell.high, "text": cell.text, "reported": cell.reported,
                "requests": row.num_requests, "prompts": cell.num_prompts,
                "seeds": " ".join(filter(None, cell.by_seed)),
                "by_seed": " ".join(repr(float(one)) for one in cell.by_seed.values()),
                "best": int((place, at) in found.best), "p_holm": found.p_values.get((place, at)),
                "differs": int(found.differs(place, at)),
                "baseline": "" if other is None else " ".join(table.rows[other].labels), "problem": row.problem,
            }  # fmt: skip
