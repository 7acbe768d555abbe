"""Writes runs to an MLflow experiment: tags, parameters, metrics, curves, files, inputs."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report.mlflow_store import VALUE_CHARS, Tracking, key_text

if TYPE_CHECKING:
    from mlflow.entities import Dataset
    from mlflow.tracking import MlflowClient

_PARAMS_PER_BATCH = 100
_METRICS_PER_BATCH = 1000
MAX_NUMBERS = 24
"""A run has no more numbers of a table among its metrics; a larger table is a file."""
MAX_POINTS = 200
"""Points of a curve that are logged, evenly chosen from it."""
NOTE_TAG = "mlflow.note.content"
"""The description of a run, in Markdown."""


@dataclass(frozen=True)
class CurvePoint:
    """A value of a metric at a step and at a time of the wall clock, in seconds since 1970."""

    name: str
    value: float
    step: int
    at_s: float


@dataclass(frozen=True)
class MlflowLogger:
    """An open MLflow experiment of a store."""

    client: "MlflowClient"
    experiment_id: str
    tracking: Tracking

    @classmethod
    def open(cls, tracking: Tracking) -> "MlflowLogger":
        client, experiment_id = tracking.connect()
        return cls(client, experiment_id, tracking)

    def start_run(
        self, name: str, parent: str | None = None, tags: Mapping[str, str | None] | None = None,
        started_s: float | None = None, experiment_id: str | None = None,
    ) -> str:  # fmt: skip
        """A new run, nested in `parent` if there is one, begun now or at `started_s`; its id."""
        known = {key: value[:VALUE_CHARS] for key, value in (tags or {}).items() if value}
        nesting = {"mlflow.parentRunId": parent} if parent else {}
        begun_ms = None if started_s is None else int(1000 * started_s)
        run = self.client.create_run(experiment_id or self.experiment_id, begun_ms, {**known, **nesting}, name[:250])
        return str(run.info.run_id)

    def end_run(
        self, run_id: str, failed: bool = False, killed: bool = False, ended_s: float | None = None
    ) -> None:  # fmt: skip
        status = "KILLED" if killed else "FAILED" if failed else "FINISHED"
        self.client.set_terminated(run_id, status, None if ended_s is None else int(1000 * ended_s))

    @contextmanager
    def ending(
        self, run_id: str, failed: bool = False, killed: bool = False, ended_s: float | None = None
    ) -> Iterator[None]:  # fmt: skip
        """Ends the run with the block: as `end_run` does, or as FAILED where the block raises and KILLED where it is
        interrupted.
        """
        try:
            yield
        except BaseException as problem:
            with suppress(Exception):  # a store that failed may fail again
                self.end_run(run_id, failed=True, killed=not isinstance(problem, Exception))
            raise
        self.end_run(run_id, failed, killed, ended_s)

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.client.set_tag(run_id, key, value[:VALUE_CHARS])

    def log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        items = [Param(key, value) for key, value in params.items()]
        for at in range(0, len(items), _PARAMS_PER_BATCH):
            self.client.log_batch(run_id, params=items[at : at + _PARAMS_PER_BATCH])

    def log_metrics(self, run_id: str, metrics: Mapping[str, float], at_s: float | None = None) -> None:
        now_s = time.time() if at_s is None else at_s
        self.log_curves(run_id, [CurvePoint(key, value, 0, now_s) for key, value in metrics.items()])

    def log_curves(self, run_id: str, points: Iterable[CurvePoint]) -> None:
        from mlflow.entities import Metric

        items = [Metric(key_text(one.name), one.value, int(1000 * one.at_s), one.step) for one in points]
        for at in range(0, len(items), _METRICS_PER_BATCH):
            self.client.log_batch(run_id, metrics=items[at : at + _METRICS_PER_BATCH])

    def log_inputs(self, run_id: str, datasets: Iterable["Dataset"], role: str, models: Iterable[str] = ()) -> None:
        """Data sets, used as `role` (training, serving), and models by id, that the run was made from."""
        from mlflow.entities import DatasetInput, InputTag, LoggedModelInput

        used = [DatasetInput(one, [InputTag("mlflow.data.context", role)]) for one in datasets]
        found = [LoggedModelInput(one) for one in models]
        if used or found:
            self.client.log_inputs(run_id, datasets=used, models=found)

    def log_files(self, run_id: str, paths: Iterable[Path], folder: str | None = None) -> None:
        for path in paths:
            self.client.log_artifact(run_id, str(path), folder)

    def log_text(self, run_id: str, name: str, text: str) -> None:
        self.client.log_text(run_id, text, name)


def prefix_tags(tags: Mapping[str, str | None]) -> dict[str, str | None]:
    """MLflow lists them beside its own tags."""
    return {f"tandem.{key}": value for key, value in tags.items()}


def select_numbers(numbers: Mapping[str, float], limit: int = MAX_NUMBERS) -> dict[str, float]:
    """The numbers with the shallowest names (`a` before `a/b`), all of a depth or none, `limit` at most."""
    depths = sorted({name.count("/") for name in numbers})
    fitting = [depth for depth in depths if sum(name.count("/") <= depth for name in numbers) <= limit]
    return {name: value for name, value in numbers.items() if fitting and name.count("/") <= fitting[-1]}
