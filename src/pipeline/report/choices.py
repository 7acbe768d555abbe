"""The choices in which the jobs of a sweep differ, and the job that each of them is compared with."""

from collections.abc import Mapping, Sequence

from pipeline.errors import ConfigError

_INDIRECT = ("experiment", "variant")
"""Groups whose files choose policies and values themselves, which overrides do not show."""


def differing_overrides(overrides: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The overrides of each job in which the jobs differ, under the shortest names that tell them apart."""
    given = [dict(split_override(one) for one in job) for job in overrides]
    keys = dict.fromkeys(key for job in given for key in job)
    differing = [key for key in keys if len({job.get(key) for job in given}) > 1]
    return [{name: job.get(key, "-") for key, name in _shortest_names(differing).items()} for job in given]


def split_override(override: str) -> tuple[str, str]:
    """Key, without its sign, and value of `+key=value`."""
    key, _, value = override.lstrip("+~").partition("=")
    return key, value


def _shortest_names(keys: Sequence[str]) -> dict[str, str]:
    """The shortest suffix of each key that no other key has."""
    return {key: next(name for name in _suffixes(key) if name == key or _is_unique(name, keys)) for key in keys}


def _suffixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]


def _is_unique(name: str, keys: Sequence[str]) -> bool:
    return sum(f".{key}".endswith(f".{name}") for key in keys) == 1


def check_baseline(name: str, jobs: Sequence[Sequence[str]]) -> None:
    """Raises ConfigError if none of the jobs with these overrides is the baseline `name`.

    A sweep over experiments or variants is not refused: they choose policies that the overrides do not show.
    """
    choices = differing_overrides(jobs)
    if any(matches(name, own) for own in choices) or any(key in _INDIRECT for own in choices for key in own):
        return
    known = dict.fromkeys(f"{key}={value}" for own in choices for key, value in own.items() if value != "-")
    differ = f"The jobs differ in {', '.join(known)}; name one of these values" if known else "All jobs are alike"
    raise ConfigError(f"baseline={name}: no job of this sweep is that. {differ}.")


def matches(name: str, choices: Mapping[str, str]) -> bool:
    """True if a job with these choices is meant by `name`: sled, 0.2 or budget=0.2."""
    return any(_is_same(name, value) or name == f"{key}={value}" for key, value in choices.items())


def _is_same(one: str, other: str) -> bool:
    """True for the same text, and for numbers that are equal: 0.2 and 0.20."""
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


def nearest(own: int, candidates: Sequence[int], choices: Sequence[Mapping[str, str]]) -> int | None:
    """Of the candidates, the job that differs from job `own` in the fewest choices, the first of several.

    None for a candidate itself, and without candidates.
    """
    if own in candidates or not candidates:
        return None
    return min(candidates, key=lambda one: sum(choices[one][key] != value for key, value in choices[own].items()))
