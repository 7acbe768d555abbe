"""Runs a search: asks the study for trials, runs each as a job of the sweep, and tells the study its values."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts import fingerprint
from pipeline.errors import ConfigError
from pipeline.report import job_result
from pipeline.report.sweep import SEARCH_FILE as SUMMARY
from pipeline.search.study import SearchStudy, TrialError, TrialPoint

LaunchJobs = Callable[[Sequence[Sequence[str]], int], Sequence[Path]]
"""Runs jobs, given by their overrides, and numbers them from the second argument on; the folder of each."""


@dataclass(frozen=True)
class SearchRunner:
    """Runs up to `num_trials` trials in `folder`, `max_parallel` at a time; too many failures end it.

    With one metric the best trial runs once more under the label `best`, from the cache, as a row for exhibits.
    """

    study: SearchStudy
    launch: LaunchJobs
    folder: Path
    num_trials: int
    max_parallel: int = 1
    max_failure_rate: float = 0.0

    def run(self) -> None:
        """Runs the remaining trials; those that were killed come first, with the values that they had. Failures of
        earlier commands count as trials, and do not end this one.
        """
        interrupted = self.study.interrupted_points()
        known_ended, known_failed = self.study.num_ended, len(self.study.trials("FAIL"))
        for points in self._batches(interrupted):
            self._run(points)
            failed = len(self.study.trials("FAIL")) - known_failed
            if failed > self.max_failure_rate * self.num_trials:
                print(
                    f"the search ends: {failed} of {self.study.num_ended - known_ended} trials failed, and "
                    f"hydra.sweeper.max_failure_rate is {self.max_failure_rate}. The same command goes on with others."
                )
                break
        best = self.study.best_points()
        if len(self.study.objective.metrics) == 1 and best:
            self._launch([TrialPoint(len(self.study.optuna_study.trials), best[0].params, "best")])

    def _batches(self, interrupted: Sequence[TrialPoint]) -> Iterator[list[TrialPoint]]:
        yield from ([point] for point in interrupted)
        while (left := self.num_trials - self.study.num_ended) > 0:
            yield [self.study.ask() for _ in range(min(left, self.max_parallel))]

    def _run(self, points: Sequence[TrialPoint]) -> None:
        for point, folder in zip(points, self._launch(points), strict=True):
            try:
                values = self.study.objective.read_values(folder)
            except (TrialError, ConfigError) as problem:
                if isinstance(problem, ConfigError) and not self.study.trials("COMPLETE"):
                    raise
                self.study.tell(point.number, None)
                print(f"trial {point.label} failed: {problem}", flush=True)
            else:
                self.study.tell(point.number, values)
                print(
                    f"trial {point.label}: {self._format_values(values)}; {self.study.num_ended} of {self.num_trials}",
                    flush=True,
                )
        self._write_summary()

    def _launch(self, points: Sequence[TrialPoint]) -> Sequence[Path]:
        """Launches a job for each; removes the result of a killed job, or of an earlier best one, from its folder."""
        for point in points:
            (self.folder / str(point.number) / job_result.JOB_FILE).unlink(missing_ok=True)
        jobs = [[*self.study.space.overrides(point.params), f"+trial={point.label}"] for point in points]
        return self.launch(jobs, points[0].number)

    def _format_values(self, values: Sequence[float]) -> str:
        return ", ".join(
            f"{name} {value:.6g}" for name, value in zip(self.study.objective.metrics, values, strict=True)
        )

    def _write_summary(self) -> None:
        """Writes search.json for the report of the sweep, after each batch: the next one may be killed."""
        node = {
            "metrics": self.study.objective.metrics,
            "directions": self.study.objective.directions,
            "best": [point.number for point in self.study.best_points()],
            "trials": [self._trial_record(trial) for trial in self.study.trials("COMPLETE", "FAIL")],
        }
        fingerprint.write_atomic(self.folder / SUMMARY, json.dumps(node, indent=1) + "\n")

    def _trial_record(self, trial: Any) -> dict[str, Any]:
        point = self.study.point(trial)
        return {
            "number": point.number, "label": point.label, "state": trial.state.name.lower(), "values": trial.values,
            "params": dict(point.params),
        }  # fmt: skip


def check_settings(num_trials: int, max_parallel: int, max_failure_rate: float) -> None:
    """Raises ConfigError for settings out of range."""
    if num_trials < 1 or max_parallel < 1:
        raise ConfigError(f"hydra.sweeper: n_trials is {num_trials} and n_jobs is {max_parallel}; give 1 or more.")
    if not 0 <= max_failure_rate <= 1:
        raise ConfigError(f"hydra.sweeper.max_failure_rate is {max_failure_rate}; a share between 0 and 1 is wanted.")
