"""A search: trial after trial is asked for, run as a job of the sweep, and told."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts import fingerprint
from pipeline.errors import ConfigError
from pipeline.report import outcome
from pipeline.report.sweep import SEARCH_REPORT as SUMMARY
from pipeline.search.objective import JobError
from pipeline.search.study import Point, Study

Launch = Callable[[Sequence[Sequence[str]], int], Sequence[Path]]
"""Runs jobs, given by their overrides, and numbers them from the second argument on; the folder of each."""


@dataclass(frozen=True)
class Search:
    """Up to `trials` trials in `folder`, `at_once` of them side by side; more failures than `max_failure_rate` end it.

    With one metric the best trial runs once more under the label `best`, from the cache, as a row for exhibits.
    """

    study: Study
    launch: Launch
    folder: Path
    trials: int
    at_once: int = 1
    max_failure_rate: float = 0.0

    def run(self) -> None:
        """Runs what is left; those that were killed come first, with the values that they had."""
        for points in self._batches():
            self._run(points)
            if len(self.study.trials("FAIL")) > self.max_failure_rate * self.trials:
                print(
                    f"the search ends: {len(self.study.trials('FAIL'))} of {self.study.ended} trials failed, and "
                    f"hydra.sweeper.max_failure_rate is {self.max_failure_rate}. The same command goes on with others."
                )
                break
        best = self.study.best()
        if len(self.study.objective.metrics) == 1 and best:
            self._launch([Point(len(self.study.memory.trials), best[0].chosen, "best")])

    def _batches(self) -> Iterator[list[Point]]:
        yield from ([point] for point in self.study.killed())
        while (left := self.trials - self.study.ended) > 0:
            yield [self.study.ask() for _ in range(min(left, self.at_once))]

    def _run(self, points: Sequence[Point]) -> None:
        for point, folder in zip(points, self._launch(points), strict=True):
            try:
                values = self.study.objective.of(folder)
            except (JobError, ConfigError) as problem:
                if isinstance(problem, ConfigError) and not self.study.trials("COMPLETE"):
                    raise
                self.study.tell(point.number, None)
                print(f"trial {point.label} failed: {problem}", flush=True)
            else:
                self.study.tell(point.number, values)
                print(f"trial {point.label}: {self._said(values)}; {self.study.ended} of {self.trials}", flush=True)
        self._note()

    def _launch(self, points: Sequence[Point]) -> Sequence[Path]:
        """A folder may hold the outcome of a job that was killed, or of a former best one."""
        for point in points:
            (self.folder / str(point.number) / outcome.NAME).unlink(missing_ok=True)
        jobs = [[*self.study.space.overrides(point.chosen), f"+trial={point.label}"] for point in points]
        return self.launch(jobs, points[0].number)

    def _said(self, values: Sequence[float]) -> str:
        return ", ".join(
            f"{name} {value:.6g}" for name, value in zip(self.study.objective.metrics, values, strict=True)
        )

    def _note(self) -> None:
        """All that is known, for the report of the sweep; also after the last trial before one is killed."""
        node = {
            "metrics": self.study.objective.metrics,
            "directions": self.study.objective.directions,
            "best": [point.number for point in self.study.best()],
            "trials": [self._trial(trial) for trial in self.study.trials("COMPLETE", "FAIL")],
        }
        fingerprint.replace(self.folder / SUMMARY, json.dumps(node, indent=1) + "\n")

    def _trial(self, trial: Any) -> dict[str, Any]:
        point = self.study.point(trial)
        return {
            "number": point.number, "label": point.label, "state": trial.state.name.lower(), "values": trial.values,
            "chosen": dict(point.chosen),
        }  # fmt: skip


def checked(trials: int, at_once: int, max_failure_rate: float) -> None:
    """Raises ConfigError for settings that no search can have."""
    if trials < 1 or at_once < 1:
        raise ConfigError(f"hydra.sweeper: n_trials is {trials} and n_jobs is {at_once}; give 1 or more.")
    if not 0 <= max_failure_rate <= 1:
        raise ConfigError(f"hydra.sweeper.max_failure_rate is {max_failure_rate}; a share between 0 and 1 is wanted.")
