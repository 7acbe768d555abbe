"""Pages of the MLflow UI: their addresses, the columns that a sweep's list opens with, and a sweep's description.

The UI reads a saved view from a tag of the experiment, {name, createdAt, state: JSON}, as its own button writes it.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.report.comparison import ComparisonRow, comparison_markdown, count_jobs
from pipeline.report.mlflow_logger import MlflowLogger
from pipeline.report.mlflow_store import VALUE_CHARS, changes_result, split_masked
from pipeline.report.served_series import SERIES
from pipeline.report.table import format_with_unit
from serving.metrics import definitions

_VIEW_TAG = "mlflow.sharedViewState."
_KIND_TAG, _KIND = "mlflow.experimentKind", "custom_model_development"
TRAINING_VIEW = "workflowType=machine_learning"
"""Without it the UI opens its view for traces of agents, which hides runs."""


_PREVIEW_FOLDER, _PREVIEW_PIXELS = "preview", 760


def runs_page(experiment_id: str) -> str:
    """All sweeps and jobs, newest first."""
    return f"/#/experiments/{experiment_id}/runs?{TRAINING_VIEW}"


def run_page(experiment_id: str, run_id: str) -> str:
    return f"/#/experiments/{experiment_id}/runs/{run_id}?{TRAINING_VIEW}"


def save_view(logger: MlflowLogger, parent: str, name: str, rows: Sequence[ComparisonRow]) -> str:
    """Saves the list of a sweep's jobs as a view with the columns that differ, best first; the page that opens it."""
    shown = [key for key in definitions.HEADLINE if any(key in row.result.metrics for row in rows)]
    columns = [*(f"params.`{key}`" for key in _differing_params(rows)), *(f"metrics.`{key}`" for key in shown)]
    state = {**_filter_state(parent, shown), **_column_state(columns), **_chart_state(shown, _differing_params(rows))}
    envelope = {"name": name[:100], "createdAt": int(1000 * time.time()), "state": json.dumps(state)}
    logger.client.set_experiment_tag(logger.experiment_id, _KIND_TAG, _KIND)
    logger.client.set_experiment_tag(logger.experiment_id, _VIEW_TAG + _view_key(parent), json.dumps(envelope))
    return sweep_page(logger.experiment_id, parent)


def _view_key(parent: str) -> str:
    return parent[:12]


def sweep_page(experiment_id: str, parent: str) -> str:
    """The saved view of a sweep that ended."""
    return f"{runs_page(experiment_id)}&viewStateShareKey={_view_key(parent)}"


def last_sweep(logger: MlflowLogger) -> str | None:
    """The run of the last sweep that has a saved view."""
    ended = "tags.`tandem.kind` = 'sweep' and attributes.status != 'RUNNING'"
    runs = logger.client.search_runs([logger.experiment_id], ended, order_by=["start_time DESC"], max_results=1)
    return str(runs[0].info.run_id) if runs else None


def log_previews(logger: MlflowLogger, run_id: str, figures: Iterable[Path]) -> list[str]:
    """Logs copies of the figures that are as wide as a description is shown; their names among the artifacts."""
    from PIL import Image

    names = []
    for path in figures:
        with Image.open(path) as image:
            image.thumbnail((_PREVIEW_PIXELS, 2 * _PREVIEW_PIXELS))
            names.append(f"{_PREVIEW_FOLDER}/{path.name}")
            logger.client.log_image(run_id, image, names[-1])
    return names


def _filter_state(parent: str, shown: Sequence[str]) -> dict[str, Any]:
    """The sweep's jobs, the best in the first metric first: ordered by a metric, the UI does not nest runs."""
    order = shown[0] if shown else definitions.HEADLINE[0]
    metric = definitions.find(order)
    return {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{parent}'", "orderByKey": f"metrics.`{order}`",
        "orderByAsc": metric is not None and metric.better == "lower", "startTime": "ALL", "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs", "datasetsFilter": [],
    }  # fmt: skip


def _column_state(columns: Sequence[str]) -> dict[str, Any]:
    widths = {column: 40 + 7 * len(column.partition("`")[2]) for column in columns}
    return {"selectedColumns": columns, "columnOrder": columns, "columnWidths": widths}


def _chart_state(shown: Sequence[str], differing: Sequence[str]) -> dict[str, Any]:
    """What differs between the runs, then the metrics and series in their order; the first 20 runs of the list."""
    cards: list[dict[str, Any]] = [
        {"type": "DIFFERENCE", "compareGroups": ["Parameters", "Model metrics"], "chartName": "What differs",
         "showChangeFromBaseline": True, "showDifferencesOnly": True, "baselineColumnUuid": "", "section": "compare"},
        {"type": "PARALLEL", "selectedParams": differing, "selectedMetrics": shown[:3], "showAllRuns": False,
         "section": "compare"},
        *({"type": "BAR", "metricKey": key, "section": "metrics"} for key in shown),
        *({"type": "LINE", "metricKey": key, "selectedMetricKeys": [key], "xAxisKey": "time-relative",
           "useGlobalXaxisKey": False, "section": "over time"} for key in _SERIES),
    ]  # fmt: skip
    sections = list(dict.fromkeys(str(card["section"]) for card in cards))
    return {
        "compareRunCharts": [
            {"uuid": f"{number}", "metricSectionId": card.pop("section"), "isGenerated": True, "deleted": False,
             "runsCountToCompare": 20, **card}
            for number, card in enumerate(cards)
        ],
        "compareRunSections": [
            {"uuid": name, "name": name, "display": True, "isReordered": True, "deleted": False, "isGenerated": True,
             "columns": 1 if name == "compare" else 3, "cardHeight": 360}
            for name in sections
        ],
        "isAccordionReordered": True, "runsHiddenMode": "FIRST_20_RUNS",
    }  # fmt: skip


_SERIES = tuple(f"series/{name}" for name in SERIES)


def _differing_params(rows: Sequence[ComparisonRow]) -> list[str]:
    """The parameters in which the jobs differ, the policy in any case."""
    given = [dict(map(split_masked, row.result.overrides)) for row in rows]
    keys = dict.fromkeys(key for job in given for key in job if changes_result(key))
    differing = [key for key in keys if len({job.get(key) for job in given}) > 1]
    return list(dict.fromkeys(["policy", *differing]))


def sweep_note(rows: Sequence[ComparisonRow], run_id: str, figures: Sequence[str], planned: int = 0) -> str:
    """The description of a sweep in Markdown: which job is best and in what, the comparison, figures.

    `figures` are names among the run's artifacts; `planned` counts the jobs that have not begun too.
    """
    head = best_sentence(rows)
    images = [f"![{name}](get-artifact?path={quote(name)}&run_uuid={run_id})" for name in figures]
    room = VALUE_CHARS - len(head) - sum(map(len, images)) - 100
    table = comparison_markdown(rows, planned).strip()
    if len(table) > room:
        table = "\n".join(_first_lines(_winners_table(rows, planned), room))
    return "\n\n".join(filter(None, [head, table, *images]))


def _winners_table(rows: Sequence[ComparisonRow], planned: int) -> list[str]:
    """The lines of the comparison without the jobs that are neither best in a column nor Pareto-optimal."""
    complete, total = count_jobs(rows, planned)
    kept = [row for row in rows if row.best or row.pareto] or rows
    title = f"**{complete} of {total} jobs complete**; the best of a column and the Pareto-optimal are here, "
    return [f"{title}all are in comparison.md, an artifact of this run", *comparison_markdown(kept).splitlines()[1:]]


def _first_lines(lines: Sequence[str], room: int) -> list[str]:
    """As many lines as fit into `room` characters."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


_JUDGED = {
    "quality/mean": "quality", "latency/ttft_s/median": "median TTFT", "latency/tbt_s/mean": "mean TBT",
    "throughput/goodput_tokens_per_s": "goodput", "cost/usd_per_million_tokens": "cost",
    "resources/device_j_per_token": "energy of the device",
}  # fmt: skip
"""The metrics by which a sweep's description names the best job, and their names there."""
_MAX_NAMED = 3
"""Of more equals, a description gives the number."""


def best_sentence(rows: Sequence[ComparisonRow]) -> str:
    """`Job 2 (policy=sled) has the highest quality (0.41) and the lowest ...`, for each job that is best in a metric.

    A metric in which all jobs are the same names none of them; of equals, the first is named. Jobs with different or
    unknown prompts are not compared.
    """
    compared = {row.prompts for row in rows if row.result.metrics.keys() & _JUDGED.keys()}
    if len(compared) > 1 or None in compared:
        return "No best job is named: the jobs served different prompts, or their records are gone."
    won: dict[int, list[str]] = {}
    for key, name in _JUDGED.items():
        values = {at: row.result.metrics[key] for at, row in enumerate(rows) if key in row.result.metrics}
        metric = definitions.find(key)
        if metric is None or len(set(values.values())) < 2:
            continue
        best = (max if metric.better == "higher" else min)(values.values())
        first, *others = (at for at, value in values.items() if value == best)
        shared = f", as {_listed([_number(rows[at]) for at in others])}" if others else ""
        shared = shared if len(others) <= _MAX_NAMED else f", as {len(others)} others"
        superlative = "highest" if metric.better == "higher" else "lowest"
        won.setdefault(first, []).append(f"the {superlative} {name} ({format_with_unit(metric, best)}{shared})")
    return " ".join(f"{_job_name(rows[at])} has {_listed(texts)}." for at, texts in sorted(won.items()))


def _number(row: ComparisonRow) -> str:
    return f"job {row.result.number}"


def _job_name(row: ComparisonRow) -> str:
    chosen = ", ".join(f"{name}={value}" for name, value in row.choices.items() if value != "-")
    return f"**Job {row.result.number}** ({chosen or row.result.policy})"


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def headline(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a run that MLflow shows, in their order; the others are in metrics.csv."""
    return {key: metrics[key] for key in definitions.HEADLINE if key in metrics}
