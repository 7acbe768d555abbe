"""What a served run did over its virtual time: tokens, requests under way, the cloud's queue and its batches."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report.records import Records, read_batches

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUM_BINS = 60
SERIES = ("tokens_per_s", "active_requests", "queued_requests", "batch_requests")


def served_series(records: Records, artifact: Path) -> dict[str, list[tuple[float, float]]]:
    """(end of the bin in seconds of virtual time, value in the bin) of each series, in at most `NUM_BINS` bins.

    A series without its source is left out: the queue without a time line, batches without batches.parquet.
    """
    import numpy as np

    requests = records.requests
    end_s = max((one.ended_s for one in requests if one.ended_s is not None), default=0.0)
    if end_s <= 0:
        return {}
    edges_s = np.linspace(0.0, end_s, NUM_BINS + 1)
    width_s = end_s / NUM_BINS
    seen_s = np.array([time_s for one in requests for time_s in one.token_times_s], dtype=float)
    counts, _ = np.histogram(seen_s, edges_s)
    served = [(one.arrived_s, one.ended_s) for one in requests if one.ended_s is not None]
    found = {"tokens_per_s": counts / width_s, "active_requests": _mean_overlap(served, edges_s) / width_s}
    if records.has_time_lines:
        found["queued_requests"] = _mean_overlap(records.spans_on("queue"), edges_s) / width_s
    series = {name: list(zip(edges_s[1:].tolist(), values.tolist(), strict=True)) for name, values in found.items()}
    batches = list(_mean_batches(artifact, edges_s))
    return {**series, "batch_requests": batches} if batches else series


def _mean_overlap(spans: Iterable[tuple[float, float]], edges_s: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Seconds of all spans together in each bin."""
    import numpy as np

    starts_s, ends_s = np.array(list(spans), dtype=float).reshape(-1, 2).T
    until = [float(np.sum(np.clip(edge, starts_s, ends_s) - starts_s)) for edge in edges_s]
    return np.diff(np.array(until))


def _mean_batches(artifact: Path, edges_s: "NDArray[np.float64]") -> Iterator[tuple[float, float]]:
    """The mean number of requests in the batches that began in a bin; a bin without one is left out."""
    import numpy as np

    begins_s, sizes = (np.array(column, dtype=float) for column in read_batches(artifact))
    counts, _ = np.histogram(begins_s, edges_s)
    totals, _ = np.histogram(begins_s, edges_s, weights=sizes)
    yield from (
        (float(end_s), float(total / count))
        for end_s, total, count in zip(edges_s[1:], totals, counts, strict=True)
        if count
    )
