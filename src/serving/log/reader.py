"""Reads a journal line by line; a crash's incomplete end is no error, anything else that is wrong is.

Journals of several processes as one.

1. Each journal's own order is kept: a process knows best what it saw when.
2. Between journals time decides, each plus its `offset_s`; of equal times the journal named first comes first.
3. A message is received after it was sent, though clocks or equal times say otherwise: a receiver that is less than
   `skew_s` ahead waits for its sender. Beyond that the message came from nobody who kept a journal.
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

from serving.log.codec import MalformedError, codec
from serving.log.entries import Born, Entry, Handled, Ran, Sent, shifted
from serving.log.event_log import REMEMBERED, VERSION, Recent
from serving.messages import Command, Event, Finished, Message, Outcome, Received, Send, Start, Work

_EVENT, _COMMANDS, _WORK, _OUTCOME, _MESSAGE, _SECONDS = (
    codec(kind).decode for kind in (Event, tuple[Command, ...], Work, Outcome, Message, float)
)
_TEXT, _COUNT = codec(str).decode, codec(int).decode
Line = dict[str, Any]


@dataclass(frozen=True)
class Header:
    """What a journal says of itself."""

    facts: dict[str, Any]
    """What the writer said of the run, first and later."""
    offset_s: float
    """Added to this journal's times, they are comparable with the other journals of the run."""


def header(path: Path) -> Header:
    """The facts of a journal; raises ValueError when it is none, or one of another version."""
    lines = _lines(path)
    _, first = next(lines, (0, {}))
    _check(path, first)
    facts = dict(first["facts"])
    for _, line in lines:
        if "facts" in line:
            facts |= line["facts"]
    return Header(facts, _SECONDS(first["offset_s"]))


def read(path: Path) -> Iterator[Entry]:
    """The entries in the order of their writing, times as written; raises ValueError with the line that is wrong."""
    reader = _Reader()
    for number, line in _lines(path):
        if number == 1:
            _check(path, line)
        elif "facts" not in line:
            try:
                yield reader.entry(line)
            except KeyError as error:
                raise ValueError(f"{path.name} line {number}: there is no {error.args[0]!r}") from error
            except ValueError as error:
                raise ValueError(f"{path.name} line {number}: {error}") from error


def _check(path: Path, first: Line) -> None:
    if first.get("journal") != VERSION or not {"facts", "offset_s"} <= set(first):
        found = f"version {first['journal']}" if "journal" in first else "no journal"
        raise ValueError(f"{path} is {found}; this program reads journals of version {VERSION}")


def _lines(path: Path) -> Iterator[tuple[int, Line]]:
    for number, text in enumerate(_complete(path), 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path.name} line {number} is not JSON: {error}") from error
        if not isinstance(line, dict):
            raise MalformedError(f"got {line!r:.80}, not an object", f"{path.name} line {number}")
        yield number, line


def _complete(path: Path) -> Iterator[bytes]:
    """Lines up to where the writer was stopped."""
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        try:
            for text in file:
                if text.endswith(b"\n"):
                    yield text
        except (EOFError, zlib.error):
            return


class _Reader:
    """Resolves what lines refer to."""

    def __init__(self) -> None:
        self._serial = 0
        self._said = Recent[int, Command](4 * REMEMBERED)
        self._outcomes = Recent[int, Finished](4 * REMEMBERED)

    def entry(self, line: Line) -> Entry:
        if "node" in line:
            return self._handled(line)
        if "ran" in line:
            return self._ran(line)
        if "sent" in line:
            return self._sent(line)
        return Born(_TEXT(line["born"]), _SECONDS(line["at"]))

    def _handled(self, line: Line) -> Handled:
        event = self._finished(line["finished"]) if "finished" in line else _EVENT(line["event"])
        commands = _COMMANDS(line["commands"])
        for command in commands:
            if isinstance(command, Start | Send):
                self._serial += 1
                self._said.put(self._serial, command)
        return Handled(_TEXT(line["node"]), _SECONDS(line["at"]), event, commands)

    def _finished(self, serial: Any) -> Finished:
        event = self._outcomes.take(_COUNT(serial))
        if event is None:
            raise ValueError(f"no work {serial} ran before")
        return event

    def _ran(self, line: Line) -> Ran:
        outcome = _OUTCOME(line["outcome"])
        if "work" in line:
            work = _WORK(line["work"])
        else:
            start = self._said.take(_COUNT(line["start"]))
            if not isinstance(start, Start):
                raise ValueError(f"no work {line['start']} was started before")
            self._outcomes.put(line["start"], Finished(start.job, outcome))
            work = start.work
        return Ran(_TEXT(line["ran"]), work, outcome, _SECONDS(line["begin"]), _SECONDS(line["end"]))

    def _sent(self, line: Line) -> Sent:
        if "message" in line:
            send = Send(_TEXT(line["to"]), _MESSAGE(line["message"]), _COUNT(line["nbytes"]))
        else:
            said = self._said.take(_COUNT(line["send"]))
            if not isinstance(said, Send):
                raise ValueError(f"no message {line['send']} was said before")
            send = said
        now_s, arrives_s = _SECONDS(line["now"]), _SECONDS(line["arrives"])
        return Sent(_TEXT(line["sent"]), send.to, send.message, send.nbytes, now_s, arrives_s)


SKEW_S = 0.1


def merge(paths: Sequence[Path], skew_s: float = SKEW_S) -> Iterator[Entry]:
    """The entries of all journals in causal order, on the clock of those without an offset."""
    return merged([_shifted(path) for path in paths], skew_s)


def _shifted(path: Path) -> Iterator[Entry]:
    offset_s = header(path).offset_s
    return (shifted(entry, offset_s) for entry in read(path)) if offset_s else read(path)


def merged(streams: Iterable[Iterator[Entry]], skew_s: float = SKEW_S) -> Iterator[Entry]:
    """As `merge`, of entries whose times are on one clock already."""
    merger = _Merger(list(streams), skew_s)
    while merger.heads:
        yield merger.next()


class _Merger:
    def __init__(self, streams: list[Iterator[Entry]], skew_s: float) -> None:
        self._streams, self._skew_s = streams, skew_s
        self._under_way: Counter[tuple[str, Message]] = Counter()
        self.heads: list[tuple[float, int, Entry]] = []
        """(time, stream, entry): the next of each stream, the earliest first."""
        for number in range(len(streams)):
            self._advance(number)

    def next(self) -> Entry:
        _, number, entry = self._pick()
        if isinstance(entry, Sent):
            self._under_way[entry.to, entry.message] += 1
        elif isinstance(entry, Handled) and isinstance(entry.event, Received):
            self._arrived((entry.node, entry.event.message))
        self._advance(number)
        return entry

    def _pick(self) -> tuple[float, int, Entry]:
        """The earliest whose cause has been seen, among those within the skew of the earliest of all."""
        held: list[tuple[float, int, Entry]] = []
        while self.heads and not (held and self.heads[0][0] > held[0][0] + self._skew_s):
            head = heapq.heappop(self.heads)
            if self._has_cause(head[2]):
                break
            held.append(head)
        else:
            head = held.pop(0)
        for other in held:
            heapq.heappush(self.heads, other)
        return head

    def _has_cause(self, entry: Entry) -> bool:
        if isinstance(entry, Handled) and isinstance(entry.event, Received):
            return self._under_way[entry.node, entry.event.message] > 0
        return True

    def _arrived(self, key: tuple[str, Message]) -> None:
        self._under_way[key] -= 1
        if self._under_way[key] <= 0:
            del self._under_way[key]

    def _advance(self, number: int) -> None:
        entry = next(self._streams[number], None)
        if entry is not None:
            heapq.heappush(self.heads, (_time(entry), number, entry))


def _time(entry: Entry) -> float:
    """When its process saw it; of a piece of work that is not said: it follows what came before it."""
    match entry:
        case Ran():
            return float("-inf")
        case Sent():
            return entry.now_s
        case _:
            return entry.at_s
