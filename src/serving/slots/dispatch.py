"""Slot `dispatch`: which node of a tier takes a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.messages import Backlog


class Dispatch(Protocol):
    def choose(self, turn: int, rows: int, backlogs: Sequence[Backlog]) -> str:
        """A node's name; `turn` counts this chooser's choices from its own start; `backlogs` count what it sent."""
        ...


@dataclass(frozen=True)
class RoundRobin:
    """Each chooser's sessions in turn; choosers begin at different nodes. With one node in the tier: that one."""

    def choose(self, turn: int, rows: int, backlogs: Sequence[Backlog]) -> str:  # noqa: ARG002
        return backlogs[turn % len(backlogs)].node
