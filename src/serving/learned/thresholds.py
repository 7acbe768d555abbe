"""Synera's profiled thresholds as an artifact."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path

from serving.core.scores import IMPORTANCE, IMPORTANCE_SCORES
from serving.learned.artifact import ArtifactFormat

FILE = "thresholds.json"
FORMAT = ArtifactFormat("thresholds", FILE, "", "thresholds.path", "profile", version=3)


@dataclass(frozen=True)
class Thresholds:
    """Synera, section 5: the confidence cut-off, the acceptance probability, and the profiled chunks."""

    c_th: float
    """Chunks with a higher confidence stay on the device."""
    alpha: float
    confidence: tuple[float, ...]
    """Mean confidence of each profiled chunk, in the order of the profile."""
    importance: tuple[float, ...]
    """Mean importance of each profiled chunk, its column sums; chunks above a percentile of it are sent."""
    made_from: dict[str, str]
    """What was profiled: model pair, data, window, seed."""
    first_chunk_perplexities: tuple[float, ...] = ()
    """The perplexity of each answer's first chunk."""
    num_fully_accepted: int | None = None
    """How many of the profiled chunks the target accepted as a whole; None: not known."""
    importance_readings: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The other readings of importance of each profiled chunk, by the name of the score."""
    importance_auc: Mapping[str, float] = field(default_factory=dict)
    """By the name of the score: how well importance tells chunks that were not accepted as a whole; 0.5: not at all."""
    importance_auc_of_full_chunks: Mapping[str, float] = field(default_factory=dict)
    """The same among the longest chunks alone."""

    @property
    def note(self) -> str | None:
        """What a report must say of a profile of which no chunk was accepted, or every one; None: nothing."""
        num_drafts = len(self.confidence)
        if self.num_fully_accepted == 0:
            return self._remark(
                f"not one of {num_drafts} drafts was",
                f"c_th is {self.c_th:g} and tells no good draft from a bad one, and drafts cost more than they save. "
                "Take a device model that agrees with the cloud's more often, train it longer, profile more prompts "
                "(workload.profiling.num_prompts), or compare with policy=cloud_centric",
            )
        if self.num_fully_accepted == num_drafts:
            return self._remark(
                f"all {num_drafts} drafts were",
                f"c_th is {self.c_th:g} and rests on no bad draft, and with calibration=share it rises until the "
                "budget is sent. Profile more prompts (workload.profiling.num_prompts), or compare with "
                "policy=edge_centric",
            )
        return None

    def _remark(self, accepted: str, follows: str) -> str:
        pair, data = self.made_from.get("pair", "this pair"), self.made_from.get("data", "unknown prompts")
        profile = f"alpha {self.alpha:.2f}; {pair}, {data}"
        return f"while Synera was profiled, {accepted} accepted as a whole ({profile}): {follows}"

    @property
    def best_importance(self) -> str:
        """The reading of importance with the highest AUC on the profiled chunks; without any, the column sum."""
        known = [name for name in IMPORTANCE_SCORES if name in self.importance_auc]
        return max(known, key=self.importance_auc.__getitem__, default=IMPORTANCE)

    def importance_by(self, score: str) -> tuple[float, ...]:
        """One reading of importance of each profiled chunk. Raises ValueError for one that was not profiled."""
        if score == IMPORTANCE:
            return self.importance
        if score not in self.importance_readings:
            known = ", ".join((IMPORTANCE, *self.importance_readings))
            raise ValueError(f"the thresholds have no score {score!r}; they have {known}. Profile them again.")
        return self.importance_readings[score]

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
            num_fully_accepted=fields["num_fully_accepted"],
            importance_readings={name: tuple(values) for name, values in fields["importance_readings"].items()},
            importance_auc=dict(fields["importance_auc"]),
            importance_auc_of_full_chunks=dict(fields["importance_auc_of_full_chunks"]),
        )
