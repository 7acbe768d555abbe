"""The metrics of a job on every draw of the clock: draws.json, which `results draws` compares between jobs."""

import json
from pathlib import Path

from pipeline.report.records import Records
from pipeline.report.results.draws import DRAWS_FILE
from pipeline.report.summary import summarise

_PREFIXES = ("latency/", "cost/", "throughput/", "slo/", "quality/", "energy/", "offloading/", "partition/")
"""The metrics that are kept: those that claims are about."""


def summarise_draws(out: Path, *, drawn: Path) -> None:
    """Reads the records of each draw below `drawn`, and writes draws.json: metric -> its value in every draw."""
    folders = sorted((folder for folder in drawn.iterdir() if folder.name.isdigit()), key=lambda one: int(one.name))
    series: dict[str, list[float]] = {}
    for folder in folders:
        for metric, value in summarise(Records.read(folder)).metrics().items():
            if metric.startswith(_PREFIXES):
                series.setdefault(metric, []).append(value)
    complete = {metric: values for metric, values in series.items() if len(values) == len(folders)}
    (out / DRAWS_FILE).write_text(json.dumps(complete), encoding="utf-8")
