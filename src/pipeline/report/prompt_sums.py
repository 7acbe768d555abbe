"""Sums of a metric by prompt: what is resampled for an interval, and swapped between two jobs for a p-value."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import UserError
from pipeline.report.records import RequestRecord, read_requests
from pipeline.report.statistics import PairedSums
from pipeline.report.summary import smooth_metric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAX_GROUPS = 2048
ROWS_FILE = "rows.json"
_ROW_KEYS = 3


@dataclass(frozen=True)
class PromptSums:
    """`sums` [groups, k] of a metric; `combine` of their totals is the job's own value.

    A group is one of `prompts`, or several where there are more than 2,048: the time and memory of an interval do not
    grow with them, and groups drawn at even distances have the same variance.
    """

    prompts: tuple[str, ...]
    sums: NDArray[np.float64]
    combine: Callable[..., Any]

    def paired_with(self, baseline: PromptSums) -> PairedSums:
        """For a test of the difference; `baseline` is of the same prompts."""
        return PairedSums(self.sums, baseline.sums, self.combine)


def requests_by_prompt(artifact: str | None) -> dict[str, list[RequestRecord]]:
    """The requests of a job by what is resampled; empty if the records are gone: there are no intervals then."""
    try:
        return group_by_prompt(read_requests(Path(artifact)) if artifact else [])
    except UserError:
        return {}


def group_by_prompt(requests: Sequence[RequestRecord]) -> dict[str, list[RequestRecord]]:
    """What is resampled: the requests of each prompt, or each request alone if all have the same prompt (a blank one):
    they differ in their arrival then.
    """
    alike = len({request.prompt_id for request in requests}) == 1
    found: dict[str, list[RequestRecord]] = {}
    for request in requests:
        found.setdefault(request.request if alike else request.prompt_id, []).append(request)
    return dict(sorted(found.items()))


def prompt_sums(metric: str, value: float, by_prompt: Mapping[str, Sequence[RequestRecord]]) -> PromptSums | None:
    """The sums of a job's metric, scaled to its `value`; None for a metric that cannot be resampled.

    Every such metric is proportional to its first sum, which takes the scale (`SmoothMetric`).
    """
    import numpy as np

    found = smooth_metric(metric)
    if found is None or not by_prompt:
        return None
    rows = [np.sum([found.sums(request) for request in requests], axis=0) for requests in by_prompt.values()]
    sums = _grouped(np.asarray(rows, dtype=np.float64))
    with np.errstate(all="ignore"):
        own = float(found.combine(*sums.sum(axis=0)))
    if own and np.isfinite(own):
        sums[:, 0] *= value / own
    return PromptSums(tuple(by_prompt), sums, found.combine)


def read_stage_rows(artifact: str | None) -> dict[str, Any]:
    """`{group: {row: {metric: values by cluster}}}` of a stage's artifact; empty if it has no rows.json."""
    file = Path(artifact or "") / ROWS_FILE
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if artifact and file.is_file() else {}
    return found


def stage_sums(metric: str, rows: Mapping[str, Any]) -> PromptSums | None:
    """The sums of a stage's metric `stage/NAME/GROUP/ROW/METRIC` over the clusters of its values in `rows`; None where
    there are none.
    """
    import numpy as np

    place = metric.split("/")[2:]
    cell: Any = rows
    for key in place:
        cell = cell.get(key) if isinstance(cell, dict) else None
    if len(place) != _ROW_KEYS or not isinstance(cell, list):
        return None
    values = np.asarray(cell, dtype=np.float64)
    sums = np.stack([values, np.ones_like(values)], axis=1)
    return PromptSums(tuple(map(str, range(len(cell)))), _grouped(sums), operator.truediv)


def _grouped(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    if len(sums) <= _MAX_GROUPS:
        return sums
    return np.stack([sums[first::_MAX_GROUPS].sum(axis=0) for first in range(_MAX_GROUPS)])
