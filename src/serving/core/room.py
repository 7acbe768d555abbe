"""The memory that a worker's next batch may take."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from serving.core.kv_accounting import Ledger
from serving.core.queued_request import Item
from serving.messages import INF


@dataclass
class Room:
    """In tokens of whole blocks; asked for only by schedulers that look at it."""

    ledger: Ledger
    busy: Iterable[str]
    """Sessions that wait here: their caches are not given up for others."""

    @cached_property
    def tokens(self) -> float:
        """M(t) of WISP, Eq. 14: what is free, and what idle sessions' prefixes would leave."""
        return self.ledger.room(self.busy)

    def need(self, item: Item) -> float:
        """What running the rest of a request takes beyond what its session has."""
        return 0.0 if self.tokens == INF else self.ledger.need(item.rows, item.span, item.left, item.done)
