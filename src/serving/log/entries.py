"""Entries of an event log as readers see them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from serving.drivers.observer import NodeObserver, Observer
from serving.messages import Command, Event, Message, Outcome, Work


@dataclass(frozen=True, slots=True)
class NodeCreated:
    """A node was created: the run started, or its host restarted."""

    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class EventHandled:
    """A node handled an event and returned commands."""

    node: str
    at_s: float
    event: Event
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Work ran on a node's chip."""

    node: str
    work: Work
    outcome: Outcome
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class MessageSent:
    """A message left a node; `nbytes` is charged on the emulated link."""

    node: str
    to: str
    message: Message
    nbytes: int
    sent_s: float
    arrives_s: float
    """Infinite for a lost message."""


LogEntry: TypeAlias = NodeCreated | EventHandled | WorkDone | MessageSent


def shift_time(entry: LogEntry, offset_s: float) -> LogEntry:
    """Returns the entry on a clock that is `offset_s` ahead; times inside commands stay."""
    match entry:
        case WorkDone():
            return replace(entry, begin_s=entry.begin_s + offset_s, end_s=entry.end_s + offset_s)
        case MessageSent():
            return replace(entry, sent_s=entry.sent_s + offset_s, arrives_s=entry.arrives_s + offset_s)
        case _:
            return replace(entry, at_s=entry.at_s + offset_s)


def feed_observer(entries: Iterable[LogEntry], observer: Observer) -> None:
    """Calls the observer as the driver called it during the run."""
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
