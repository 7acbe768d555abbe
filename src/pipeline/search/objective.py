"""What a search is for: metrics of its jobs, read where the exhibits read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args

from pipeline.errors import ConfigError, UserError
from pipeline.report import outcome

Direction = Literal["maximize", "minimize"]
DIRECTIONS = get_args(Direction)


class TrialError(UserError):
    """A trial's job has no result."""


@dataclass(frozen=True)
class Objective:
    """Metrics by name (`stage/NAME/METRIC`, `quality/mean`, ...), each with its direction. Raises ConfigError."""

    metrics: tuple[str, ...]
    directions: tuple[Direction, ...]

    def __post_init__(self) -> None:
        if not self.metrics or len(self.metrics) != len(self.directions):
            raise ConfigError(
                f"hydra.sweeper has {len(self.metrics)} metrics and {len(self.directions)} directions; "
                "give one direction for each metric, and one metric at least: hydra.sweeper.metric=stage/NAME/METRIC."
            )
        wrong = [one for one in self.directions if one not in DIRECTIONS]
        if wrong:
            raise ConfigError(f"hydra.sweeper.direction is {wrong[0]!r}; allowed are {', '.join(DIRECTIONS)}.")

    def read_values(self, folder: Path) -> tuple[float, ...]:
        """The values of the job of this folder; raises JobError where it failed, ConfigError where it has no metric."""
        found = outcome.read_result(folder)
        if found is None or found.status != "complete":
            raise TrialError((found and found.error) or "the job left no result")
        unknown = [metric for metric in self.metrics if not isfinite(found.metrics.get(metric, float("nan")))]
        if unknown:
            near = [name for name in found.metrics if name.startswith(unknown[0].rpartition("/")[0] + "/")]
            raise ConfigError(
                f"hydra.sweeper.metric: the job has no metric {unknown[0]!r}; it has "
                f"{', '.join(near or found.metrics) or 'none'}."
            )
        return tuple(found.metrics[metric] for metric in self.metrics)


def create_objective(metric: str | Sequence[str], direction: str | Sequence[str]) -> Objective:
    """One metric or several."""
    return Objective(_tuple(metric), _tuple(direction))


def _tuple(value: str | Sequence[str]) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
