"""A request as a choice of nodes sees it."""

from typing import NamedTuple

from serving.messages import Backlog


class Task(NamedTuple):
    """What is to be placed: one request, with all that its route writes before it asks again."""

    session: str
    rows: int
    """Of its first pass."""
    steps: int
    """Passes: as many as tokens may be written, the last of which nobody may need."""
    tokens: int
    """That its cache comes to, at most."""
    turn: int
    """How many choices this chooser made before."""

    def seconds(self, backlog: Backlog) -> float:
        """How long a node would compute for it, by itself: F* / C of Hyperion, Eq. 20."""
        return (self.rows - 1) * backlog.row_s + self.steps * backlog.step_s
