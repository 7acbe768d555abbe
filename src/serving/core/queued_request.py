"""A request in a worker's queue: what a scheduler may read."""

from dataclasses import dataclass
from typing import NamedTuple

from serving.messages import LoadReport, Request, SequenceSlice, Span


@dataclass(slots=True, eq=False)
class QueuedRequest:
    request: Request
    slice: SequenceSlice
    span: Span
    """Which layers run for it here."""
    arrived_s: float
    """When it joined the queue, in seconds."""
    remaining_tokens: int
    """Rows still to run."""
    done_tokens: int = 0
    """Rows already run, where it is being run in parts."""
    cost_s: float = -1.0
    """What the rows that are left add to a batch's time, once somebody asked; below 0: nobody has."""
    session_arrived_s: float = 0.0
    """When its session first came here."""

    @property
    def cached_len(self) -> int:
        return self.slice.start + self.done_tokens

    @property
    def deadline_s(self) -> float:
        """When its answer must leave (WISP, Eq. 12)."""
        return self.arrived_s + self.request.slack_s

    @property
    def expected_tokens(self) -> float:
        return self.request.expected_tokens

    def advance(self, num_tokens: int) -> None:
        """So many of its rows run now."""
        self.done_tokens += num_tokens
        self.remaining_tokens -= num_tokens
        self.cost_s = -1.0

    def chunk_size(self, max_tokens: int) -> int:
        """How many rows to run now where about `max_tokens` fit: all, or what leaves the drafts and the row before them
        together.
        """
        if self.remaining_tokens <= max_tokens:
            return self.remaining_tokens
        return min(max_tokens, self.remaining_tokens - self.slice.num_drafts - 1) or self.remaining_tokens


class Task(NamedTuple):
    """What is to be placed: one request, with all that its route writes before it asks again."""

    session: str
    num_tokens: int
    """Of its first pass."""
    num_passes: int
    """Passes: as many as tokens may be written, the last of which nobody may need."""
    max_cached_len: int
    """That its cache comes to, at most."""
    choice_index: int
    """How many choices this chooser made before."""

    def compute_s(self, report: LoadReport) -> float:
        """How long a node would compute for it, by itself: F* / C of Hyperion, Eq. 20."""
        return (self.num_tokens - 1) * report.per_token_s + self.num_passes * report.pass_s
