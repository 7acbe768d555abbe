"""Reads the event log of one process line by line, and merges the logs of several processes.

The incomplete end that a crash leaves is no error; any other malformed line is.

Order of a merge:
1. Each log keeps its own order.
2. Between logs the time decides, each log's times plus its `offset_s`; at equal times the log named first comes first.
3. A message is received after it was sent, even if clocks or equal times say otherwise: a receiver that is less than
   `skew_s` ahead waits for the sender. Beyond `skew_s` the sender is taken to have no log.
"""

import gzip
import heapq
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.core.codec import MalformedError, codec
from serving.log.event_log import (
    MAX_PENDING,
    VERSION,
    EventHandled,
    LogEntry,
    MessageSent,
    NodeCreated,
    RecentMap,
    WorkDone,
    shift_time,
)
from serving.messages import (
    Command,
    Event,
    Message,
    MessageReceived,
    Outcome,
    SendMessage,
    StartWork,
    Work,
    WorkFinished,
)

_decode_event, _decode_commands, _decode_work, _decode_outcome, _decode_message, _decode_seconds = (
    codec(kind).decode for kind in (Event, tuple[Command, ...], Work, Outcome, Message, float)
)
_decode_str, _decode_int = codec(str).decode, codec(int).decode
LogLine = dict[str, Any]


@dataclass(frozen=True)
class LogHeader:
    """The first line of a log, and the facts that came later."""

    facts: dict[str, Any]
    offset_s: float
    """Add it to this log's times to compare them with the run's other logs."""


def read_header(path: Path) -> LogHeader:
    """Raises ValueError if the file is no event log, or one of another version."""
    lines = _lines(path)
    _, first = next(lines, (0, {}))
    _check_version(path, first)
    facts = _facts(path, 1, first)
    for number, line in lines:
        if "facts" in line:
            facts |= _facts(path, number, line)
    return LogHeader(facts, _decode_seconds(first["offset_s"]))


def read_entries(path: Path) -> Iterator[LogEntry]:
    """Yields the entries in the order of writing, times as written. Raises ValueError that names the malformed line."""
    reader = _LineDecoder()
    for number, line in _lines(path):
        if number == 1:
            _check_version(path, line)
        elif "facts" not in line:
            try:
                yield reader.decode(line)
            except KeyError as error:
                raise ValueError(f"{path.name} line {number}: there is no {error.args[0]!r}") from error
            except ValueError as error:
                raise ValueError(f"{path.name} line {number}: {error}") from error


def _facts(path: Path, number: int, line: LogLine) -> dict[str, Any]:
    if not isinstance(line["facts"], dict):
        raise MalformedError(f"facts are {line['facts']!r:.80}, not an object", f"{path.name} line {number}")
    return dict(line["facts"])


def _check_version(path: Path, first: LogLine) -> None:
    if first.get("event_log") != VERSION or not {"facts", "offset_s"} <= set(first):
        found = f"version {first['event_log']}" if "event_log" in first else "no event log"
        raise ValueError(f"{path} is {found}; this program reads event logs of version {VERSION}")


def _lines(path: Path) -> Iterator[tuple[int, LogLine]]:
    for number, text in enumerate(_complete_lines(path), 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path.name} line {number} is not JSON: {error}") from error
        if not isinstance(line, dict):
            raise MalformedError(f"got {line!r:.80}, not an object", f"{path.name} line {number}")
        yield number, line


def _complete_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines that the writer finished. Raises ValueError if the file is damaged in another way."""
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        try:
            for text in file:
                if text.endswith(b"\n"):
                    yield text
        except (EOFError, zlib.error):
            return
        except gzip.BadGzipFile as error:
            raise ValueError(f"{path} is no whole gzip file ({error}); copy it again, or name it as it is") from None


class _LineDecoder:
    """Resolves the numbers by which lines refer to earlier commands."""

    def __init__(self) -> None:
        self._serial = 0
        self._commands = RecentMap[int, Command](4 * MAX_PENDING)
        self._outcomes = RecentMap[int, WorkFinished](4 * MAX_PENDING)

    def decode(self, line: LogLine) -> LogEntry:
        if "node" in line:
            return self._event_handled(line)
        if "ran" in line:
            return self._work_done(line)
        if "sent" in line:
            return self._message_sent(line)
        return NodeCreated(_decode_str(line["created"]), _decode_seconds(line["at_s"]))

    def _event_handled(self, line: LogLine) -> EventHandled:
        event = self._finished(line["finished"]) if "finished" in line else _decode_event(line["event"])
        commands = _decode_commands(line["commands"])
        for command in commands:
            if isinstance(command, StartWork | SendMessage):
                self._serial += 1
                self._commands.put(self._serial, command)
        return EventHandled(_decode_str(line["node"]), _decode_seconds(line["at_s"]), event, commands)

    def _finished(self, serial: Any) -> WorkFinished:
        event = self._outcomes.take(_decode_int(serial))
        if event is None:
            raise ValueError(f"no work {serial} ran before")
        return event

    def _work_done(self, line: LogLine) -> WorkDone:
        outcome = _decode_outcome(line["outcome"])
        if "work" in line:
            work = _decode_work(line["work"])
        else:
            start = self._commands.take(_decode_int(line["start"]))
            if not isinstance(start, StartWork):
                raise ValueError(f"no work {line['start']} was started before")
            self._outcomes.put(line["start"], WorkFinished(start.job, outcome))
            work = start.work
        return WorkDone(
            _decode_str(line["ran"]), work, outcome, _decode_seconds(line["begin_s"]), _decode_seconds(line["end_s"])
        )

    def _message_sent(self, line: LogLine) -> MessageSent:
        if "message" in line:
            send = SendMessage(_decode_str(line["to"]), _decode_message(line["message"]), _decode_int(line["nbytes"]))
        else:
            command = self._commands.take(_decode_int(line["send"]))
            if not isinstance(command, SendMessage):
                raise ValueError(f"no message {line['send']} was sent before")
            send = command
        now_s, arrives_s = _decode_seconds(line["sent_s"]), _decode_seconds(line["arrives_s"])
        return MessageSent(_decode_str(line["sent"]), send.to, send.message, send.nbytes, now_s, arrives_s)


MAX_SKEW_S = 0.1


def merge_logs(paths: Sequence[Path], skew_s: float = MAX_SKEW_S) -> Iterator[LogEntry]:
    """Yields the entries of all logs in causal order, on the clock of the logs without an offset."""
    return merge_entries([_shifted(path) for path in paths], skew_s)


def _shifted(path: Path) -> Iterator[LogEntry]:
    offset_s = read_header(path).offset_s
    return (shift_time(entry, offset_s) for entry in read_entries(path)) if offset_s else read_entries(path)


def merge_entries(streams: Iterable[Iterator[LogEntry]], skew_s: float = MAX_SKEW_S) -> Iterator[LogEntry]:
    """As `merge_logs`, for entries whose times are on one clock already."""
    merger = _Merger(list(streams), skew_s)
    while merger.next_entries:
        yield merger.next()


class _Merger:
    def __init__(self, streams: list[Iterator[LogEntry]], skew_s: float) -> None:
        self._streams, self._skew_s = streams, skew_s
        self._in_flight: Counter[tuple[str, Message]] = Counter()
        self.next_entries: list[tuple[float, int, LogEntry]] = []
        """Heap of (time, stream number, entry): the next entry of each stream."""
        for number in range(len(streams)):
            self._advance(number)

    def next(self) -> LogEntry:
        _, number, entry = self._pick()
        if isinstance(entry, MessageSent):
            self._in_flight[entry.to, entry.message] += 1
        elif isinstance(entry, EventHandled) and isinstance(entry.event, MessageReceived):
            self._arrived((entry.node, entry.event.message))
        self._advance(number)
        return entry

    def _pick(self) -> tuple[float, int, LogEntry]:
        """Pops the earliest entry whose cause was seen, among those at most `skew_s` after the earliest; else the
        earliest.
        """
        held: list[tuple[float, int, LogEntry]] = []
        while self.next_entries and not (held and self.next_entries[0][0] > held[0][0] + self._skew_s):
            head = heapq.heappop(self.next_entries)
            if self._has_cause(head[2]):
                break
            held.append(head)
        else:
            head = held.pop(0)
        for other in held:
            heapq.heappush(self.next_entries, other)
        return head

    def _has_cause(self, entry: LogEntry) -> bool:
        if isinstance(entry, EventHandled) and isinstance(entry.event, MessageReceived):
            return self._in_flight[entry.node, entry.event.message] > 0
        return True

    def _arrived(self, key: tuple[str, Message]) -> None:
        self._in_flight[key] -= 1
        if self._in_flight[key] <= 0:
            del self._in_flight[key]

    def _advance(self, number: int) -> None:
        entry = next(self._streams[number], None)
        if entry is not None:
            heapq.heappush(self.next_entries, (_entry_time_s(entry), number, entry))


def _entry_time_s(entry: LogEntry) -> float:
    """When the process wrote it; for work, which has no such time, -inf: it directly follows its predecessor."""
    match entry:
        case WorkDone():
            return float("-inf")
        case MessageSent():
            return entry.sent_s
        case _:
            return entry.at_s
