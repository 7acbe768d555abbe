"""Synera's profiled thresholds as an artifact."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

from serving.learned.artifact import ArtifactFormat

FILE = "thresholds.json"
FORMAT = ArtifactFormat("thresholds", FILE, "", "thresholds.path", "profile")


@dataclass(frozen=True)
class Thresholds:
    """Synera, section 5: the confidence cut-off, the acceptance probability, and the profiled chunks."""

    c_th: float
    """Chunks with a higher confidence stay on the device."""
    alpha: float
    confidence: tuple[float, ...]
    """Mean confidence of each profiled chunk, in the order of the profile."""
    importance: tuple[float, ...]
    """Mean importance of each profiled chunk; chunks above a percentile of it are sent."""
    made_from: dict[str, str]
    """What was profiled: model pair, data, window, seed."""
    first_chunk_perplexities: tuple[float, ...] = ()
    """The perplexity of each answer's first chunk."""

    def importance_percentile(self, share: float) -> float:
        """The importance that `share` of the profiled chunks do not exceed (nearest rank)."""
        return nearest_rank(self.importance, share) if self.importance else 0.0

    def save(self, folder: Path) -> None:
        FORMAT.save(folder, asdict(self))


def nearest_rank(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    rank = ceil(share * len(values) - 1e-9)  # 0.3 x 10 is a little more than 3
    return sorted(values)[max(0, rank - 1)]


def load(path: Path) -> Thresholds:
    """Reads the artifact that the stage `training.synera.stages.profile_thresholds` wrote.

    Raises ValueError that names the file when it is missing, cut off, or not of this form.
    """
    fields = FORMAT.read_header(path)
    with FORMAT.parsing(path):
        return Thresholds(
            c_th=float(fields["c_th"]),
            alpha=float(fields["alpha"]),
            confidence=tuple(fields["confidence"]),
            importance=tuple(fields["importance"]),
            first_chunk_perplexities=tuple(fields["first_chunk_perplexities"]),
            made_from=dict(fields["made_from"]),
        )
