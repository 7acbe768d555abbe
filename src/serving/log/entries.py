"""What a journal holds, as its readers see it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from serving.drivers.observer import Observer, Registrar
from serving.messages import Command, Event, Message, Outcome, Work


@dataclass(frozen=True, slots=True)
class Born:
    """A fresh node: the run began, or its host started again."""

    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Handled:
    """A node heard an event, and said commands."""

    node: str
    at_s: float
    event: Event
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """A piece of work on a node's chip, from its begin to its end."""

    node: str
    work: Work
    outcome: Outcome
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A message left a node; `nbytes` is what it weighs on the imitated link."""

    node: str
    to: str
    message: Message
    nbytes: int
    now_s: float
    arrives_s: float
    """Infinite for a message that is lost."""


Entry: TypeAlias = Born | Handled | Ran | Sent


def shifted(entry: Entry, offset_s: float) -> Entry:
    """The entry on a clock that is `offset_s` ahead; times inside of commands stay as they were said."""
    match entry:
        case Ran():
            return replace(entry, begin_s=entry.begin_s + offset_s, end_s=entry.end_s + offset_s)
        case Sent():
            return replace(entry, now_s=entry.now_s + offset_s, arrives_s=entry.arrives_s + offset_s)
        case _:
            return replace(entry, at_s=entry.at_s + offset_s)


def feed(entries: Iterable[Entry], observer: Observer) -> None:
    """Shows an observer what it would have seen of one driver, and a registrar who was born when."""
    for entry in entries:
        match entry:
            case Born(node, at_s):
                if isinstance(observer, Registrar):
                    observer.born(node, at_s)
            case Handled(node, at_s, event, commands):
                observer.handled(node, event, at_s, commands)
            case Ran(node, work, outcome, begin_s, end_s):
                observer.ran(node, work, outcome, begin_s, end_s)
            case Sent(node, to, message, nbytes, now_s, arrives_s):
                observer.sent(node, to, message, nbytes, now_s, arrives_s)
