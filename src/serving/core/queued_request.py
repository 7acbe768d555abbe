"""A request as the policy sees it: `QueuedRequest` in a worker's queue (scheduler), `Task` before a node is chosen
(dispatch).
"""

from dataclasses import dataclass
from typing import NamedTuple

from serving.messages import LoadReport, Request, SequenceSlice, Span


@dataclass(slots=True, eq=False)
class QueuedRequest:
    request: Request
    slice: SequenceSlice
    span: Span
    """The layers that it runs on this worker."""
    arrived_s: float
    """When it joined the queue."""
    remaining_tokens: int
    """Tokens still to compute."""
    done_tokens: int = 0
    """Tokens already computed, if it runs in chunks."""
    cost_s: float = -1.0
    """Seconds that the remaining tokens add to a batch, cached by the estimator; negative: not computed yet."""
    session_arrived_s: float = 0.0
    """When its session's first request came."""
    prefix_session: str = ""
    """The session to copy the cache of its first `done_tokens` tokens from when it runs; "": its own cache has them."""

    @property
    def cached_len(self) -> int:
        return self.slice.start + self.done_tokens

    @property
    def is_prefill(self) -> bool:
        """True if its session has no cached prefix, or it is a part of a prompt, which nothing verifies."""
        return not self.slice.start or not self.slice.rule

    @property
    def deadline_s(self) -> float:
        """When its reply must leave to keep the SLO (WISP, Eq. 12)."""
        return self.arrived_s + self.request.slack_s

    @property
    def expected_tokens(self) -> float:
        return self.request.expected_tokens

    def advance(self, num_tokens: int) -> None:
        """`num_tokens` of its tokens run now."""
        self.done_tokens += num_tokens
        self.remaining_tokens -= num_tokens
        self.cost_s = -1.0

    def begin_behind(self, session: str, num_tokens: int) -> None:
        """Its first `num_tokens` tokens are in another session's cache ("", 0: in none), and need not run."""
        self.prefix_session = session
        self.advance(num_tokens - self.done_tokens)

    def chunk_size(self, max_tokens: int) -> int:
        """How many tokens to run if about `max_tokens` fit. The drafts stay together with the token before them, so it
        may be more.
        """
        if self.remaining_tokens <= max_tokens:
            return self.remaining_tokens
        return min(max_tokens, self.remaining_tokens - self.slice.num_drafts - 1) or self.remaining_tokens


class Task(NamedTuple):
    """One request to place on a node, with all the tokens that its budget allows."""

    session: str
    num_tokens: int
    """Tokens of its first pass."""
    num_passes: int
    """One for each token of the budget, at most."""
    max_cached_len: int
    """The longest that its cache can become."""
    choice_index: int
    """How many nodes the same owner chose before."""
    owner: str = ""
    """The device or the node that sends it."""

    def compute_s(self, report: LoadReport) -> float:
        """Seconds that a node computes for it alone: F* / C of Hyperion, Eq. 20."""
        return (self.num_tokens - 1) * report.per_token_s + self.num_passes * report.pass_s
