"""Draws candidates by what is known of others, each once."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.answers.candidates import POLICY, Candidate, CandidateSpace
from pipeline.answers.front import objective_values
from pipeline.answers.ranking import excess
from pipeline.answers.requirements import Requirements
from pipeline.answers.rows import Row

if TYPE_CHECKING:
    import optuna

_STARTUP_TRIALS = 16
_MAX_ASKS = 8
"""Draws for each candidate that is asked for: a small space has been drawn soon."""
_CONSTRAINT, _UNKNOWN = "require", 1e12


@dataclass
class CandidateSampler:
    """Optuna's tree-structured Parzen estimator (TPE), with the limits as a constraint.

    What it draws again is drawn at random instead: told again, a good candidate would be drawn ever more often.
    """

    space: CandidateSpace
    require: Requirements
    objective: Sequence[str]
    seed: int = 0
    _drawn: set[Candidate] = field(default_factory=set, init=False)
    _open: dict[Candidate, "optuna.Trial"] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=self.seed, constant_liar=True, n_startup_trials=_STARTUP_TRIALS)
        self._study = optuna.create_study(directions=["minimize"] * len(self.objective), sampler=sampler)
        self._random = optuna.create_study(sampler=optuna.samplers.RandomSampler(self.seed))

    def add_defaults(self, rows: Iterable[Row]) -> None:
        """Rows of policies as their files have them, which are not drawn."""
        from optuna.distributions import CategoricalDistribution

        choice = CategoricalDistribution(list(self.space.spaces))
        for row in rows:
            self._drawn.add(row.candidate)
            self._add({POLICY: row.candidate.policy}, {POLICY: choice}, row)

    def draw(self, count: int) -> list[Candidate]:
        """So many candidates that were not drawn before; fewer where hardly any is left."""
        from optuna.trial import TrialState

        found: list[Candidate] = []
        for _ in range(_MAX_ASKS * count):
            trial = self._study.ask()
            candidate = self.space.draw(trial)
            if candidate in self._drawn:
                self._study.tell(trial, state=TrialState.FAIL)
                trial = self._random.ask()
                candidate = self.space.draw(trial)
            if candidate not in self._drawn:
                self._drawn.add(candidate)
                self._open[candidate] = trial
                found.append(candidate)
            if len(found) == count:
                break
        return found

    def tell(self, candidate: Candidate, row: Row | None) -> None:
        """What a drawn candidate reaches; None: it could not be served."""
        from optuna.trial import TrialState

        trial = self._open.pop(candidate)
        if trial.study is self._random:
            if row:
                self._add(trial.params, trial.distributions, row)
        elif row:
            trial.set_constraint(_CONSTRAINT, excess(row, self.require))
            self._study.tell(trial, self._values(row))
        else:
            self._study.tell(trial, state=TrialState.FAIL)

    def _add(self, params: dict[str, Any], distributions: Mapping[str, Any], row: Row) -> None:
        from optuna.trial import create_trial

        constraints = {_CONSTRAINT: excess(row, self.require)}
        values = self._values(row)
        self._study.add_trial(
            create_trial(params=params, distributions=dict(distributions), values=values, constraints=constraints)
        )

    def _values(self, row: Row) -> list[float]:
        """The objectives as the estimator takes them: finite."""
        return [min(value, _UNKNOWN) for value in objective_values(row, self.objective)]
