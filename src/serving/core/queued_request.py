"""A request in a worker's queue: what a scheduler may read."""

from dataclasses import dataclass

from serving.messages import Request, Rows, Span


@dataclass(slots=True, eq=False)
class Item:
    request: Request
    rows: Rows
    span: Span
    """Which layers run for it here."""
    arrived: float
    """When it joined the queue, in seconds."""
    left: int
    """Rows still to run."""
    done: int = 0
    """Rows already run, where it is being run in parts."""
    cost_s: float = -1.0
    """What the rows that are left add to a batch's time, once somebody asked; below 0: nobody has."""
    since: float = 0.0
    """When its session first came here."""

    @property
    def cached(self) -> int:
        return self.rows.start + self.done

    @property
    def deadline(self) -> float:
        """When its answer must leave (WISP, Eq. 12)."""
        return self.arrived + self.request.slack_s

    @property
    def value(self) -> float:
        return self.request.value

    def take(self, rows: int) -> None:
        """So many of its rows run now."""
        self.done += rows
        self.left -= rows
        self.cost_s = -1.0

    def part(self, rows: int) -> int:
        """How many rows to run now where about `rows` fit: all, or what leaves the drafts and the row before them
        together.
        """
        if self.left <= rows:
            return self.left
        return min(rows, self.left - self.rows.check - 1) or self.left
