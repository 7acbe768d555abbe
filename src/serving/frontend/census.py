"""What a cloud counts of its own work while it serves."""

from collections.abc import Sequence

from serving.messages import HEADER_NBYTES, Command, Event, Forward, Message, Outcome, Received, Request, Work
from serving.nodes.worker import Worker


class Census:
    """An observer of a cloud's nodes, in the order in which requests meet them; what they hold now is read from them.

    Requests, sessions and cached tokens are those of the first, bytes are what comes from and goes to devices, by the
    policy's own account.
    """

    def __init__(self, *nodes: Worker) -> None:
        self.nodes, self.node = nodes, nodes[0]
        self._names = frozenset(node.name for node in nodes)
        self.requests = self.batches = self.rows = self.errors = 0
        self.busy_s = 0.0
        self.uplink_nbytes = self.downlink_nbytes = 0

    @property
    def waiting(self) -> int:
        """Parts of requests in the queue."""
        return sum(len(parts) for node in self.nodes for parts in node.queue.values())

    @property
    def sessions(self) -> int:
        return len(self.node.tenancy.owners)

    @property
    def cached_tokens(self) -> int:
        return self.node.ledger.used

    @property
    def capacity_tokens(self) -> float:
        return self.node.ledger.capacity

    # The observer.

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if node == self.node.name and isinstance(event, Received) and isinstance(event.message, Request):
            rows = event.message.rows
            self.requests += 1
            self.uplink_nbytes += HEADER_NBYTES + rows.nbytes + self.node.policy.exchange.nbytes(rows)

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if isinstance(work, Forward):
            self.batches += 1
            self.rows += sum(rows.n for rows in work.rows)
            self.busy_s += end_s - begin_s

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:  # noqa: ARG002
        if to not in self._names:
            self.downlink_nbytes += nbytes
