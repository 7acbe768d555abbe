"""The event log of one process: an observer that writes JSON lines while the run goes on.

    {"journal": 1, "offset_s": 0.0, "facts": {...}}                   the first line
    {"facts": {...}}                                                  what became known later
    {"born": node, "at": s}
    {"node": node, "at": s, "event": {...}, "commands": [...]}
    {"ran": node, "start": k, "outcome": {...}, "begin": s, "end": s}
    {"node": node, "at": s, "finished": k, "commands": [...]}         the event Finished of that work
    {"sent": node, "send": k, "now": s, "arrives": s}

Nothing large stands there twice: `Start` and `SendMessage` commands count as 1, 2, ... in the order of their writing,
and later lines say which they mean. What cannot be referred to (a message delivered twice, say) is written out.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Generic, TypeVar

from serving.log.codec import codec
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

VERSION = 1
MAX_PENDING = 1 << 16
"""Commands under way that a journal can refer to."""

K = TypeVar("K")
V = TypeVar("V")
_encode_event, _encode_command, _encode_work, _encode_outcome, _encode_message, _encode_seconds = (
    codec(kind).encode for kind in (Event, Command, Work, Outcome, Message, float)
)
_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class RecentMap(Generic[K, V]):
    """What was put last and not taken yet; the oldest is forgotten first."""

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
    """Writes `path`, compressed when it ends in .gz; a context manager.

    `offset_s` is what readers add to this process's times to compare them with another's. A crash leaves all lines but
    those of the last second of the run's clock, and at most `flush_every` of them; no session's beginning is among
    these, so that what other processes did for it has an owner. Raises ValueError when a fact is no JSON: an infinite
    number, say.
    """

    def __init__(
        self, path: Path, facts: Mapping[str, Any] | None = None, offset_s: float = 0.0, flush_every: int = 256
    ) -> None:
        first = {"journal": VERSION, "offset_s": offset_s, "facts": dict(facts or {})}
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
        """Adds facts that were not known at the beginning."""
        self._write({"facts": facts}, self._flushed_s)

    def node_created(self, node: str, at_s: float) -> None:
        """A node is made, or made anew; one that nobody announced is born at its first event."""
        self._known_nodes.add(node)
        self._write({"born": node, "at": at_s}, at_s)

    # The observer.

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        if node not in self._known_nodes:
            self.node_created(node, now)
        heard = self._event_fields(node, event)
        self._write({"node": node, "at": now, **heard, "commands": [_encode_command(c) for c in commands]}, now)
        for command in commands:
            self._track_command(node, command)
        if isinstance(event, RequestArrived):
            self.flush()

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        begun = self._started.take((node, id(work)))
        line: dict[str, Any] = {"ran": node, "start": begun[0]} if begun else {"ran": node, "work": _encode_work(work)}
        if begun:
            self._outcomes.put((node, begun[1].job), (begun[0], outcome))
        line |= {"outcome": _encode_outcome(outcome), "begin": begin_s, "end": _encode_seconds(end_s)}
        self._write(line, self._flushed_s)

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        said = self._sends.take((id(message), to))
        if said and said[1].nbytes == nbytes:
            line: dict[str, Any] = {"sent": node, "send": said[0]}
        else:
            line = {"sent": node, "to": to, "message": _encode_message(message), "nbytes": nbytes}
        self._write(line | {"now": now, "arrives": _encode_seconds(arrives_s)}, now)

    def _event_fields(self, node: str, event: Event) -> dict[str, Any]:
        if isinstance(event, WorkFinished):
            known = self._outcomes.take((node, event.job))
            if known and known[1] is event.outcome:
                return {"finished": known[0]}
        return {"event": _encode_event(event)}

    def _track_command(self, node: str, command: Command) -> None:
        """Holds the command, so that the identity of its work or message stays its own."""
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
    """The same lines are the same bytes, whenever and under whatever name they are written."""
    return gzip.GzipFile(filename="", mode="wb", compresslevel=5, fileobj=raw, mtime=0)
