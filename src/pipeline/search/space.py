"""A search space in Hydra's syntax of sweeps: searched keys with their distributions, and fixed ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from optuna.distributions import BaseDistribution

ALLOWED_SWEEPS = (
    "choice(a,b), a,b,c, range(1,10), interval(0.0,0.3), int(interval(32,256)), tag(log,interval(1e-5,1e-3))"
)


@dataclass(frozen=True)
class SearchSpace:
    """`searched`: the distribution of each searched key; `fixed`: the value of each other key, as it was written."""

    searched: "Mapping[str, BaseDistribution]"
    fixed: Mapping[str, str] = field(default_factory=dict)

    def overrides(self, params: Mapping[str, Any]) -> list[str]:
        """The command line of a trial; fixed keys come first, since an experiment must."""
        return [f"{key}={value}" for key, value in (*self.fixed.items(), *params.items())]

    def example_point(self) -> dict[str, Any]:
        """The point of every first choice and lower bound."""
        return {key: getattr(one, "choices", [getattr(one, "low", None)])[0] for key, one in self.searched.items()}

    def as_text(self) -> dict[str, str]:
        """The space as text, to compare two spaces."""
        from optuna.distributions import distribution_to_json

        return {**self.fixed, **{key: distribution_to_json(one) for key, one in self.searched.items()}}


def parse_space(params: Mapping[str, Any], arguments: Sequence[str]) -> SearchSpace:
    """The space of the sweeper's parameters and the command line; the later wins.

    Raises ConfigError for sweeps that no sampler can draw from.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    words = [f"{key}={value}" for key, value in params.items()]
    free: dict[str, BaseDistribution] = {}
    fixed: dict[str, str] = {}
    for override in OverridesParser.create().parse_overrides([*words, *arguments]):
        key = override.get_key_element()
        free.pop(key, None)
        fixed.pop(key, None)
        if override.is_sweep_override() and not _is_one_choice(override):
            free[key] = to_distribution(override)
        else:
            fixed[key] = (
                next(override.sweep_string_iterator(), "")
                if override.is_sweep_override()
                else (override.get_value_element_as_str())
            )
    return SearchSpace(free, fixed)


def _is_one_choice(override: "Override") -> bool:
    from hydra.core.override_parser.types import ChoiceSweep

    value = override.value()
    return isinstance(value, ChoiceSweep) and len(value.list) == 1


def to_distribution(override: "Override") -> "BaseDistribution":
    """The distribution of a sweep; choices are texts as Hydra writes them. Raises ConfigError."""
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep
    from optuna.distributions import CategoricalDistribution

    value = override.value()
    try:
        if isinstance(value, ChoiceSweep):
            return CategoricalDistribution(list(override.sweep_string_iterator()))
        if isinstance(value, IntervalSweep):
            return _interval(value.start, value.end, "log" in value.tags)
        if isinstance(value, RangeSweep):
            if value.tags:
                raise ValueError("a range has no tags; an interval may be log")
            return _range(value.start, value.stop, value.step)
    except ValueError as problem:
        raise ConfigError(f"{override.input_line}: {problem}. Allowed are {ALLOWED_SWEEPS}.") from problem
    raise ConfigError(f"{override.input_line} cannot be searched. Allowed are {ALLOWED_SWEEPS}.")


def _interval(low: Any, high: Any, log: bool) -> "BaseDistribution":
    from optuna.distributions import FloatDistribution, IntDistribution

    whole = isinstance(low, int) and isinstance(high, int)
    return IntDistribution(low, high, log=log) if whole else FloatDistribution(low, high, log=log)


def _range(start: Any, stop: Any, step: Any) -> "BaseDistribution":
    """A range excludes its end, as Hydra's does."""
    from math import ceil

    from optuna.distributions import FloatDistribution, IntDistribution

    if step <= 0 or stop <= start:
        raise ValueError("the range is empty or runs backwards")
    steps = ceil(round((stop - start) / step, 9)) - 1  # (0.4 - 0.1) / 0.1 is a little more than 3
    if all(isinstance(one, int) for one in (start, stop, step)):
        return IntDistribution(start, start + steps * step, step=step)
    return FloatDistribution(start, round(start + steps * step, 12), step=step)
