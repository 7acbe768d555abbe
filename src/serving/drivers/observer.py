"""Who watches a driver."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from serving.messages import Command, Event, Message, Outcome, Work


class Observer(Protocol):
    """Sees everything, changes nothing; times are seconds of the run's clock."""

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None: ...

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None: ...

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        """`arrives_s` is infinite for a message that is lost."""
        ...


@runtime_checkable
class NodeObserver(Protocol):
    """An observer that also wants to know which nodes are made, or made anew: they know nothing."""

    def node_created(self, node: str, at_s: float) -> None: ...
