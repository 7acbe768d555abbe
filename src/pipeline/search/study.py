"""The state of a search: an Optuna study in SQLite, which an interrupted search continues, and its objective."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isclose, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pipeline.errors import ConfigError, UserError
from pipeline.report import job_result
from pipeline.report.mlflow_store import changes_result
from pipeline.search.space import SearchSpace
from serving.metrics import definitions

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

Direction = Literal["maximize", "minimize"]
DIRECTIONS = get_args(Direction)
STUDY_FILE = "study.db"
_STUDY_NAME, _SPACE_ATTRIBUTE, _LABEL_ATTRIBUTE = "search", "space", "label"


class TrialError(UserError):
    """A trial's job has no result."""


@dataclass(frozen=True)
class Objective:
    """Metrics of job.json (`stage/NAME/METRIC`, `quality/mean`, ...) with their directions. Raises ConfigError."""

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
        """The job's values. Raises TrialError if it failed, ConfigError if it lacks a metric."""
        found = job_result.read_result(folder)
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


def create_objective(metric: str | Sequence[str], direction: str | Sequence[str] | None = None) -> Objective:
    """One metric or several; without `direction` each is searched for its better side, a stage's for the greatest."""
    metrics = _tuple(metric)
    return Objective(metrics, _tuple(direction) if direction else tuple(map(_better_direction, metrics)))


def _better_direction(metric: str) -> Direction:
    found = definitions.find(metric)
    return "minimize" if found and found.better == "lower" else "maximize"


def _tuple(value: str | Sequence[str]) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True)
class TrialPoint:
    """A trial to run: its number, its choices by key, and its label in tables."""

    number: int
    params: Mapping[str, Any]
    label: str


@dataclass(frozen=True)
class SearchStudy:
    """The trials in `optuna_study`, with their `space` and `objective`."""

    optuna_study: "optuna.Study"
    space: SearchSpace
    objective: Objective

    def trials(self, *states: str) -> "list[optuna.trial.FrozenTrial]":
        """The trials in one of these states: RUNNING, COMPLETE, FAIL, WAITING."""
        return [one for one in self.optuna_study.get_trials(deepcopy=False) if one.state.name in states]

    @property
    def num_ended(self) -> int:
        """The number of trials that are not run again."""
        return len(self.trials("COMPLETE", "FAIL"))

    def interrupted_points(self) -> list[TrialPoint]:
        """Trials that began and never ended; one that was killed before it had all its choices is told as failed."""
        found = []
        for trial in self.trials("RUNNING"):
            if trial.params.keys() == self.space.searched.keys():
                found.append(self.point(trial))
            else:
                self.tell(trial.number, None)
        return found

    def ask(self) -> TrialPoint:
        """The next trial."""
        return self.point(self.optuna_study.ask(dict(self.space.searched)))

    def tell(self, number: int, values: Sequence[float] | None) -> None:
        """Records a trial's values; None for a failed one."""
        from optuna.trial import TrialState

        self.optuna_study.tell(number, values, None if values else TrialState.FAIL)

    def best_points(self) -> list[TrialPoint]:
        """The best trial; with several metrics the Pareto front; empty before a trial is complete."""
        if not self.trials("COMPLETE"):
            return []
        one = len(self.objective.metrics) == 1
        return [
            self.point(trial) for trial in ([self.optuna_study.best_trial] if one else self.optuna_study.best_trials)
        ]

    def point(self, trial: "optuna.trial.FrozenTrial | optuna.Trial") -> TrialPoint:
        chosen = {key: trial.params[key] for key in self.space.searched if key in trial.params}
        return TrialPoint(trial.number, chosen, str(trial.user_attrs.get(_LABEL_ATTRIBUTE, trial.number)))


@contextmanager
def open_study(
    folder: Path, space: SearchSpace, objective: Objective, seed: int, initial_points: Mapping[str, Mapping[str, Any]]
) -> Iterator[SearchStudy]:
    """The study in `folder`, created or loaded, and locked against other processes; a new one begins with
    `initial_points`, by label.

    Raises ConfigError if it has another space or objective, or another process uses it.
    """
    import optuna
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with FileLock(folder / "study.lock", timeout=0):
            storage = optuna.storages.RDBStorage(f"sqlite:///{folder / STUDY_FILE}")
            try:
                identity = _identity(space, objective)
                _check_same_space(storage, folder, identity)
                study = _load_or_create(storage, objective, seed)
                study.set_user_attr(_SPACE_ATTRIBUTE, json.dumps(identity))
                _enqueue_initial(study, space, initial_points)
                yield SearchStudy(study, space, objective)
            finally:
                storage.engine.dispose()
    except Timeout:
        raise ConfigError(f"another search runs in {folder}; wait for it, or choose another hydra.sweep.dir.") from None


def _load_or_create(storage: "optuna.storages.RDBStorage", objective: Objective, seed: int) -> "optuna.Study":
    """Seeds the sampler by the number of trials: with the same seed, a continued search would draw the same again."""
    import optuna

    study = optuna.create_study(
        storage=storage, study_name=_STUDY_NAME, directions=[*objective.directions], load_if_exists=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.sampler = optuna.samplers.TPESampler(
            seed=seed + len(study.get_trials(deepcopy=False)), constant_liar=True
        )
    return study


def _identity(space: SearchSpace, objective: Objective) -> dict[str, str]:
    """The settings that comparable trials share."""
    texts = {key: text for key, text in space.as_text().items() if changes_result(key.lstrip("+"))}
    kept = {key: text for key, text in texts.items() if key.split(".")[0] != "trainer"}
    return {"metric": ", ".join(objective.metrics), "direction": ", ".join(objective.directions), **kept}


def _check_same_space(storage: "optuna.storages.RDBStorage", folder: Path, wanted: Mapping[str, str]) -> None:
    """Raises ConfigError if `folder` has results of another space; without results the study is deleted."""
    import optuna

    if _STUDY_NAME not in optuna.get_all_study_names(storage):
        return
    study = optuna.load_study(study_name=_STUDY_NAME, storage=storage)
    known = json.loads(study.user_attrs.get(_SPACE_ATTRIBUTE, "{}"))  # none: killed as it began
    if known != wanted and not study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
        optuna.delete_study(study_name=_STUDY_NAME, storage=storage)
        return
    differing = [key for key in {**known, **wanted} if known.get(key) != wanted.get(key)]
    if differing:
        key = differing[0]
        raise ConfigError(
            f"{folder} holds a search of another space: {key} was {known.get(key, 'not given')} and is "
            f"{wanted.get(key, 'not given')}. Choose another hydra.sweep.dir, or remove that folder."
        )


def _enqueue_initial(
    study: "optuna.Study", space: SearchSpace, initial_points: Mapping[str, Mapping[str, Any]]
) -> None:
    if study.get_trials(deepcopy=False):
        return
    names = {key.lstrip("+"): key for key in space.searched}
    for label, point in initial_points.items():
        fixed = {key.lstrip("+") for key in space.fixed}
        unknown = [key for key in point if key not in names and key not in fixed]
        if unknown:
            raise ConfigError(
                f"hydra.sweeper.initial_points.{label}: {unknown[0]} is not searched; searched are {', '.join(names)}."
            )
        known = {
            names[key]: _checked_value(key, value, space.searched[names[key]])
            for key, value in point.items()
            if key in names
        }
        study.enqueue_trial(known, user_attrs={_LABEL_ATTRIBUTE: label})


def _checked_value(key: str, value: Any, allowed: "BaseDistribution") -> Any:
    """The value as the distribution writes it. Raises ConfigError for a value outside it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(allowed, CategoricalDistribution):
        text = "null" if value is None else str(value).replace(", ", ",")
        if text in allowed.choices:
            return text
    elif isinstance(allowed, FloatDistribution | IntDistribution) and _is_inside(value, allowed):
        return round(value) if isinstance(allowed, IntDistribution) else value
    raise ConfigError(
        f"hydra.sweeper.initial_points: {key} is {value!r}, which is outside of the search space: {allowed}."
    )


def _is_inside(value: Any, allowed: "FloatDistribution | IntDistribution") -> bool:
    """True for a number from low to high that is on the step, if there is one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not allowed.low <= value <= allowed.high:
        return False
    steps = (value - allowed.low) / (allowed.step or 1)
    return allowed.step is None or isclose(steps, round(steps), rel_tol=0, abs_tol=1e-8)
