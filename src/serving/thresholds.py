"""Synera's profiled thresholds as an artifact that says what it was made from."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "thresholds.json"


@dataclass(frozen=True)
class Thresholds:
    """Synera, section 5: the confidence cut-off, the acceptance probability, and the profiled chunks themselves.

    `confidence` and `importance` are per-chunk averages, in the order the chunks were seen; a threshold is compared with
    "above stays on the device" for confidence and "above is sent" for importance.
    """

    c_th: float
    alpha: float
    confidence: tuple[float, ...]
    importance: tuple[float, ...]
    made_from: dict[str, str]
    """What was profiled: model pair, data, window, seed."""

    def importance_percentile(self, share: float) -> float:
        """The importance that `share` of the profiled chunks do not exceed (nearest rank)."""
        if not self.importance:
            return 0.0
        ranked = sorted(self.importance)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def load(path: Path) -> Thresholds:
    """Reads the artifact that the stage `training.stages.profile_thresholds` wrote."""
    fields = json.loads((path / FILE).read_text(encoding="utf-8"))
    return Thresholds(
        c_th=float(fields["c_th"]),
        alpha=float(fields["alpha"]),
        confidence=tuple(fields["confidence"]),
        importance=tuple(fields["importance"]),
        made_from=dict(fields["made_from"]),
    )
