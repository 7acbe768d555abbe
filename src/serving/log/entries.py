"""What a journal holds, as its readers see it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from serving.drivers.observer import NodeObserver, Observer
from serving.messages import Command, Event, Message, Outcome, Work


@dataclass(frozen=True, slots=True)
class NodeCreated:
    """A fresh node: the run began, or its host started again."""

    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class EventHandled:
    """A node heard an event, and said commands."""

    node: str
    at_s: float
    event: Event
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class WorkDone:
    """A piece of work on a node's chip, from its begin to its end."""

    node: str
    work: Work
    outcome: Outcome
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class MessageSent:
    """A message left a node; `nbytes` is what it weighs on the imitated link."""

    node: str
    to: str
    message: Message
    nbytes: int
    sent_s: float
    arrives_s: float
    """Infinite for a message that is lost."""


LogEntry: TypeAlias = NodeCreated | EventHandled | WorkDone | MessageSent


def shift_time(entry: LogEntry, offset_s: float) -> LogEntry:
    """The entry on a clock that is `offset_s` ahead; times inside of commands stay as they were said."""
    match entry:
        case WorkDone():
            return replace(entry, begin_s=entry.begin_s + offset_s, end_s=entry.end_s + offset_s)
        case MessageSent():
            return replace(entry, sent_s=entry.sent_s + offset_s, arrives_s=entry.arrives_s + offset_s)
        case _:
            return replace(entry, at_s=entry.at_s + offset_s)


def feed_observer(entries: Iterable[LogEntry], observer: Observer) -> None:
    """Shows an observer what it would have seen of one driver, and a registrar who was born when."""
    for entry in entries:
        match entry:
            case NodeCreated(node, at_s):
                if isinstance(observer, NodeObserver):
                    observer.node_created(node, at_s)
            case EventHandled(node, at_s, event, commands):
                observer.event_handled(node, event, at_s, commands)
            case WorkDone(node, work, outcome, begin_s, end_s):
                observer.work_done(node, work, outcome, begin_s, end_s)
            case MessageSent(node, to, message, nbytes, now_s, arrives_s):
                observer.message_sent(node, to, message, nbytes, now_s, arrives_s)
