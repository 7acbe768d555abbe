"""The settings of a leaderboard, and what policies measured in each."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.answers.ranking import Row


@dataclass(frozen=True)
class Setting:
    """A testbed with its network, load and lengths: the `words` of its cells.

    `only` are the policies that are compared there; empty: all.
    """

    title: str
    words: tuple[str, ...]
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Board:
    """The rows of each setting, and the cells that are not there with the reason."""

    settings: Mapping[str, Setting]
    rows: Mapping[str, tuple[Row, ...]]
    """Setting -> its rows, one a policy."""
    left_out: Mapping[tuple[str, str], str]
    """(setting, policy) -> why it is not there."""
