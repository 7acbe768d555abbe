"""The event log of one process: its entries, and the observer that writes them as JSON lines during the run.

    {"event_log": 5, "offset_s": 0.0, "facts": {...}}                       the first line
    {"facts": {...}}                                                        facts that became known later
    {"created": node, "at_s": t}
    {"node": node, "at_s": t, "event": {...}, "commands": [...]}
    {"ran": node, "start": k, "outcome": {...}, "begin_s": t, "end_s": t}
    {"node": node, "at_s": t, "finished": k, "commands": [...]}             the event WorkFinished of that work
    {"sent": node, "send": k, "sent_s": t, "arrives_s": t}

Nothing large is written twice: `StartWork` and `SendMessage` commands are numbered 1, 2, ... in the order of writing,
and later lines refer to them by number. Work or a message without such a command (for example a message that is
delivered twice) is written in full.
"""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Generic, TypeAlias, TypeVar

from serving.core.codec import codec
from serving.drivers.observer import NodeObserver, Observer
from serving.messages import (
    Command,
    Event,
    Message,
    Outcome,
    RequestArrived,
    SendMessage,
    StartWork,
    Work,
    WorkFinished,
)

VERSION = 5
MAX_PENDING = 1 << 16
"""Commands in progress that a log can refer to."""

K = TypeVar("K")
V = TypeVar("V")
_encode_event, _encode_command, _encode_work, _encode_outcome, _encode_message, _encode_seconds = (
    codec(kind).encode for kind in (Event, Command, Work, Outcome, Message, float)
)
_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class RecentMap(Generic[K, V]):
    """The last `limit` values that were put and not taken."""

    def __init__(self, limit: int) -> None:
        self._limit, self._values = limit, dict[K, V]()

    def put(self, key: K, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._limit:
            del self._values[next(iter(self._values))]

    def take(self, key: K) -> V | None:
        return self._values.pop(key, None)


class EventLog:
    """Writes `path`, compressed if its name ends in .gz. A context manager.

    A crash loses at most the lines of the last second of the run's clock, and at most `flush_every` of them. It never
    loses the start of a session, because the logs of other processes refer to it.

    Args:
        offset_s: readers add it to this process's times to compare them with those of other processes.

    Raises ValueError for a fact that JSON cannot hold, such as an infinite number.
    """

    def __init__(
        self, path: Path, facts: Mapping[str, Any] | None = None, offset_s: float = 0.0, flush_every: int = 256
    ) -> None:
        first = {"event_log": VERSION, "offset_s": offset_s, "facts": dict(facts or {})}
        self._lines = [_to_json(first)]
        self._raw = path.open("wb")
        self._file: IO[bytes] | gzip.GzipFile = _gzip_file(self._raw) if path.name.endswith(".gz") else self._raw
        self._flush_every, self._flushed_s = flush_every, 0.0
        self._known_nodes: set[str] = set()
        self._serial = 0
        self._started = RecentMap[tuple[str, int], tuple[int, StartWork]](MAX_PENDING)
        self._sends = RecentMap[tuple[int, str], tuple[int, SendMessage]](MAX_PENDING)
        self._outcomes = RecentMap[tuple[str, int], tuple[int, Outcome]](MAX_PENDING)
        self.flush()

    def add_facts(self, **facts: Any) -> None:
        """Adds facts that were not known at the start."""
        self._write({"facts": facts}, self._flushed_s)

    def node_created(self, node: str, at_s: float) -> None:
        """Logs that a node was created or restarted; a node without such a call is created at its first event."""
        self._known_nodes.add(node)
        self._write({"created": node, "at_s": at_s}, at_s)

    # The observer.

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        if node not in self._known_nodes:
            self.node_created(node, now)
        fields = self._event_fields(node, event)
        self._write({"node": node, "at_s": now, **fields, "commands": [_encode_command(c) for c in commands]}, now)
        for command in commands:
            self._track_command(node, command)
        if isinstance(event, RequestArrived):
            self.flush()

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        started = self._started.take((node, id(work)))
        line: dict[str, Any] = (
            {"ran": node, "start": started[0]} if started else {"ran": node, "work": _encode_work(work)}
        )
        if started:
            self._outcomes.put((node, started[1].job), (started[0], outcome))
        line |= {"outcome": _encode_outcome(outcome), "begin_s": begin_s, "end_s": _encode_seconds(end_s)}
        self._write(line, self._flushed_s)

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        sent = self._sends.take((id(message), to))
        if sent and sent[1].nbytes == nbytes:
            line: dict[str, Any] = {"sent": node, "send": sent[0]}
        else:
            line = {"sent": node, "to": to, "message": _encode_message(message), "nbytes": nbytes}
        self._write(line | {"sent_s": now, "arrives_s": _encode_seconds(arrives_s)}, now)

    def _event_fields(self, node: str, event: Event) -> dict[str, Any]:
        if isinstance(event, WorkFinished):
            known = self._outcomes.take((node, event.job))
            if known and known[1] is event.outcome:
                return {"finished": known[0]}
        return {"event": _encode_event(event)}

    def _track_command(self, node: str, command: Command) -> None:
        """Keeps the command alive, so that the `id` of its work or message stays unique."""
        if isinstance(command, StartWork):
            self._serial += 1
            self._started.put((node, id(command.work)), (self._serial, command))
        elif isinstance(command, SendMessage):
            self._serial += 1
            self._sends.put((id(command.message), command.to), (self._serial, command))

    # The file.

    def _write(self, line: dict[str, Any], now: float) -> None:
        self._lines.append(_to_json(line))
        if len(self._lines) >= self._flush_every or now >= self._flushed_s + 1.0:
            self._flushed_s = max(self._flushed_s, now)
            self.flush()

    def flush(self) -> None:
        if self._lines:
            self._file.write(("\n".join(self._lines) + "\n").encode())
            self._lines.clear()
        self._file.flush()

    def close(self) -> None:
        if not self._raw.closed:
            self.flush()
            self._file.close()
            self._raw.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def _gzip_file(raw: IO[bytes]) -> gzip.GzipFile:
    """Equal lines give equal bytes, whatever the time and the file name."""
    return gzip.GzipFile(filename="", mode="wb", compresslevel=5, fileobj=raw, mtime=0)


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
