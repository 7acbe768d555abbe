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

    @property
    def cached(self) -> int:
        return self.rows.start + self.done

    @property
    def deadline(self) -> float:
        return self.request.deadline

    @property
    def value(self) -> float:
        return self.request.value

    def part(self, rows: int) -> int:
        """How many rows to run now where about `rows` fit: all, or what leaves the drafts and the row before them
        together.

        Hidden states are not split.
        """
        if self.left <= rows or self.rows.blob is not None:
            return self.left
        return min(rows, self.left - self.rows.check - 1) or self.left
