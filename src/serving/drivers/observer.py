"""What a driver tells of a run: every event, job and message."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol, runtime_checkable

from serving.messages import Command, Event, Message, Outcome, Work


class Observer(Protocol):
    """Is told of every event, job and message of a run. Times are seconds of the run's clock."""

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None: ...

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None: ...

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        """`arrives_s` is infinite for a message that is lost."""
        ...


@runtime_checkable
class NodeObserver(Protocol):
    """An observer that is also told when a node is created, or created again after a failure, with empty state."""

    def node_created(self, node: str, at_s: float) -> None: ...


@runtime_checkable
class PerNodeObserver(Protocol):
    """An observer for which only the order of each node's own events matters, as its attribute says.

    Of nodes that exchange no message it may be told one after the other, each from time 0.
    """

    is_per_node: ClassVar[Literal[True]]
