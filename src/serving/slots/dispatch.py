"""Slot `dispatch`: which node of a tier takes a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.messages import Backlog


class Dispatch(Protocol):
    def choose(self, key: int, rows: int, backlogs: Sequence[Backlog]) -> str:
        """A node's name; `backlogs` carry what the chooser itself has sent since they were reported."""
        ...


@dataclass(frozen=True)
class RoundRobin:
    """By session, evenly; with one node in the tier: that one."""

    def choose(self, key: int, rows: int, backlogs: Sequence[Backlog]) -> str:  # noqa: ARG002
        return backlogs[key % len(backlogs)].node
