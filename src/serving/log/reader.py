"""Reads a journal line by line; a crash's incomplete end is no error, anything else that is wrong is."""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.log.codec import codec
from serving.log.entries import Born, Entry, Handled, Ran, Sent
from serving.log.event_log import REMEMBERED, VERSION, Recent
from serving.log.plain import MalformedError
from serving.messages import Command, Event, Finished, Message, Outcome, Send, Start, Work

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
