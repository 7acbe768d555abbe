"""Candidates of a search: policies, each with the options of its own, drawn by Optuna and made into words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.search.space import SearchSpace, parse_space

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import FloatDistribution

POLICY = "policy"


@dataclass(frozen=True)
class Candidate:
    """A policy with values of its options; without values it is the policy as its file has it."""

    policy: str
    values: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a command line. A choice of a slot comes before the options of what it chose."""
        slots = sorted(self.values, key=lambda item: "/" not in item[0])
        return (f"{POLICY}={self.policy}", *(f"{key}={value}" for key, value in slots))

    @property
    def is_default(self) -> bool:
        return not self.values

    @property
    def described(self) -> str:
        """`wisp, draft.k=4, scheduler=continuous`."""
        shown = [
            f"{key.lstrip('+').removeprefix('policy.').removeprefix('policy/')}={value}" for key, value in self.values
        ]
        return ", ".join([self.policy, *shown])


@dataclass(frozen=True)
class CandidateSpace:
    """The options of each policy by its name, in Hydra's syntax of sweeps.

    Raises ConfigError for options that cannot be searched.
    """

    spaces: Mapping[str, SearchSpace]

    @classmethod
    def parse(cls, policies: Mapping[str, Mapping[str, Any] | None]) -> "CandidateSpace":
        if not policies:
            raise ConfigError("choose.policies names no policy; give one at least: choose.policies.sled={}.")
        return cls({name: parse_space({str(k): v for k, v in (p or {}).items()}, []) for name, p in policies.items()})

    def only(self, names: Iterable[str]) -> "CandidateSpace":
        """The space of these policies; one without options of its own is added as its file has it."""
        return CandidateSpace({name: self.spaces.get(name, SearchSpace({})) for name in names})

    @property
    def defaults(self) -> list[Candidate]:
        return [Candidate(name) for name in self.spaces]

    @property
    def slot_choices(self) -> list[Candidate]:
        """Each policy with each choice of each searched slot alone: together they need what drawn candidates need."""
        return [
            Candidate(name, ((key, str(choice)),))
            for name, space in self.spaces.items()
            for key, one in space.searched.items()
            for choice in getattr(one, "choices", ())
            if "/" in key
        ]

    def draw(self, trial: "optuna.Trial") -> Candidate:
        """A candidate that the sampler chose: first the policy, then that policy's options."""
        name = trial.suggest_categorical(POLICY, list(self.spaces))
        space = self.spaces[name]
        drawn = [(key, str(_suggest(trial, f"{name}: {key}", one))) for key, one in space.searched.items()]
        return Candidate(name, (*drawn, *space.fixed.items()))


def _suggest(trial: "optuna.Trial", name: str, distribution: Any) -> Any:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    low, high = distribution.low, distribution.high
    drawn = trial.suggest_float(name, low, high, step=distribution.step, log=distribution.log)
    return min(max(round(drawn, _decimals(distribution)), low), high)


def _decimals(distribution: "FloatDistribution") -> int:
    """The decimals of a drawn number: 12 for a range; for an interval four, or more if it is narrow."""
    if distribution.step:
        return 12
    width = distribution.high - distribution.low
    scale = min(width, distribution.low) if distribution.log else width
    return max(4, 3 - floor(log10(scale))) if scale else 4
