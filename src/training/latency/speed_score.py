"""How well the configuration of today predicts measured speeds: no fit, the chips' own figures."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from serving.hardware.chip import roofline
from training.latency.published_speeds import PublishedSpeed


@dataclass(frozen=True)
class ScoredSpeed:
    """A measured speed beside what a run is charged for the same forward."""

    speed: PublishedSpeed
    predicted_s: float | None
    """None: the chip has no figures for the software."""
    basis: str
    """What the prediction rests on, or what is missing for one."""

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return None if self.predicted_s is None else self.predicted_s / self.speed.seconds - 1

    @property
    def label(self) -> str:
        speed = self.speed
        mode = f" {speed.mode}" if speed.mode else ""
        behind = f" behind {speed.cached_tokens}" if speed.cached_tokens else ""
        work = f"{speed.phase} {speed.batch} x {speed.new_tokens}{behind}"
        return f"{speed.chip.name}{mode} {speed.software} {speed.architecture.name} {speed.precision} {work}"


@dataclass(frozen=True)
class PhaseScore:
    """Medians over the predicted rows of one phase."""

    kind: str
    rows: int
    median_error: float
    bias: float


def score_speeds(speeds: Sequence[PublishedSpeed]) -> list[ScoredSpeed]:
    """Each row with its prediction, in order."""
    return [_score(speed) for speed in speeds]


def _score(speed: PublishedSpeed) -> ScoredSpeed:
    chip = speed.chip
    if speed.software not in chip.software:
        known = ", ".join(chip.software) or "none"
        missing = f"chip {chip.name} has no figures for {speed.software} (it has: {known})"
        return ScoredSpeed(speed, None, missing)
    model = roofline(chip, speed.mode, speed.architecture, speed.precision, software=speed.software)
    if speed.phase == "linear":
        model = replace(model, attention_pair_s=0, attention_read_s=0, forward_s=0, layer_s=0)
    evidence = chip.software[speed.software].sources.get("all", "no source given")
    return ScoredSpeed(speed, model.seconds(speed.load), f"{chip.name}, {speed.software}: {evidence}")


def phase_scores(scored: Sequence[ScoredSpeed]) -> list[PhaseScore]:
    """decode, prefill and forward of one session, and batches; in alphabetical order."""
    errors: dict[str, list[float]] = defaultdict(list)
    for one in scored:
        if one.error is not None:
            errors[one.speed.kind].append(one.error)
    return [PhaseScore(kind, len(own), median(map(abs, own)), median(own)) for kind, own in sorted(errors.items())]
