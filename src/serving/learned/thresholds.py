"""Synera's profiled thresholds as an artifact that says what it was made from."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

FILE = "thresholds.json"


@dataclass(frozen=True)
class Thresholds:
    """Synera, section 5: the confidence cut-off, the acceptance probability, and the profiled chunks themselves.

    `confidence` and `importance` are per-chunk averages, in the order the chunks were seen; a threshold is compared
    with "above stays on the device" for confidence and "above is sent" for importance. `first_chunk_perplexities` are
    the perplexities of each answer's first chunk.
    """

    c_th: float
    alpha: float
    confidence: tuple[float, ...]
    importance: tuple[float, ...]
    made_from: dict[str, str]
    """What was profiled: model pair, data, window, seed."""
    first_chunk_perplexities: tuple[float, ...] = ()

    def importance_percentile(self, share: float) -> float:
        """The importance that `share` of the profiled chunks do not exceed (nearest rank)."""
        return nearest_rank(self.importance, share) if self.importance else 0.0

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def nearest_rank(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    rank = ceil(share * len(values) - 1e-9)  # 0.3 x 10 is a little more than 3
    return sorted(values)[max(0, rank - 1)]


def load(path: Path) -> Thresholds:
    """Reads the artifact that the stage `training.stages.profile_thresholds` wrote.

    Raises ValueError that names the file when it is missing, cut off, or not of this form.
    """
    file = path / FILE
    try:
        return _from_json(json.loads(file.read_text(encoding="utf-8")))
    except OSError:
        raise ValueError(f"there is no {file}; thresholds.path names a folder that stage=profile made") from None
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"thresholds {file} cannot be read ({problem!r}); profile again with stage=profile") from None


def _from_json(fields: dict[str, Any]) -> Thresholds:
    return Thresholds(
        c_th=float(fields["c_th"]),
        alpha=float(fields["alpha"]),
        confidence=tuple(fields["confidence"]),
        importance=tuple(fields["importance"]),
        first_chunk_perplexities=tuple(fields["first_chunk_perplexities"]),
        made_from=dict(fields["made_from"]),
    )
