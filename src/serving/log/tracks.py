"""What a time line must remember until it can be drawn: open sessions, waiting requests, awaited verdicts.

Writes a time line in the Trace Event Format (JSON), which ui.perfetto.dev and chrome://tracing open.

A node is a process of the trace, a track of it a thread. Times are whole microseconds, so that what ends when the next
begins does not overlap it. Slices of one track must not overlap; spans may, each is of its own.
"""

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

from serving.messages import Deliver, Reply, Request, Rows

Track: TypeAlias = Literal["session", "tokens", "verdicts", "chip"]
_TRACKS: tuple[Track, ...] = ("session", "tokens", "verdicts", "chip")
_THREADS = 10
"""Thread ids a process: unique in the file, and none of them a process id of its own process."""

Point = tuple[str, Track, int]
"""(node, track, microsecond) inside a slice."""

_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def microseconds(at_s: float) -> int:
    return round(at_s * 1e6)


class TraceFile:
    """Streams to `path`, compressed when it ends in .gz; a context manager."""

    def __init__(self, path: Path) -> None:
        raw = path.open("wb")
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) if path.name.endswith(".gz") else raw
        self._raw, self._file = raw, io.TextIOWrapper(io.BufferedWriter(packed), encoding="utf-8")
        self._pids: dict[str, int] = {}
        self._threads: set[int] = set()
        self._serial = count(1)
        self._comma = ""
        self._file.write('{"displayTimeUnit":"ms","traceEvents":[\n')

    def slice(self, node: str, track: Track, name: str, begin_s: float, end_s: float, **args: Any) -> None:
        begin, end = microseconds(begin_s), microseconds(end_s)
        self._write("X", name, begin, **self._thread(node, track), cat=track, dur=end - begin, args=args)

    def span(self, node: str, name: str, begin_s: float, end_s: float, **args: Any) -> None:
        of: dict[str, Any] = {"pid": self._process(node), "cat": name.partition(" ")[0], "id": next(self._serial)}
        self._write("b", name, microseconds(begin_s), **of, args=args)
        self._write("e", name, microseconds(end_s), **of)

    def mark(self, node: str, track: Track, name: str, at_s: float, **args: Any) -> None:
        self._write("i", name, microseconds(at_s), **self._thread(node, track), s="t", cat=track, args=args)

    def counter(self, node: str, name: str, at_s: float, value: float) -> None:
        self._write("C", name, microseconds(at_s), pid=self._process(node), args={name: value})

    def flow(self, name: str, points: list[Point]) -> None:
        """An arrow from slice to slice."""
        number, last = next(self._serial), len(points) - 1
        for i, (node, track, at) in enumerate(points):
            phase = "s" if i == 0 else "f" if i == last else "t"
            self._write(phase, name, at, **self._thread(node, track), cat="flow", id=number, bp="e")

    def _process(self, node: str) -> int:
        if node not in self._pids:
            pid = self._pids[node] = len(self._pids) + 1
            self._write("M", "process_name", 0, pid=pid, args={"name": node})
            self._write("M", "process_sort_index", 0, pid=pid, args={"sort_index": pid})
        return self._pids[node]

    def _thread(self, node: str, track: Track) -> dict[str, int]:
        pid, place = self._process(node), _TRACKS.index(track)
        where = {"pid": pid, "tid": _THREADS * pid + place}
        if where["tid"] not in self._threads:
            self._threads.add(where["tid"])
            self._write("M", "thread_name", 0, **where, args={"name": track})
            self._write("M", "thread_sort_index", 0, **where, args={"sort_index": place})
        return where

    def _write(self, phase: str, name: str, ts: int, **more: Any) -> None:
        self._file.write(self._comma + _json({"ph": phase, "name": name, "ts": ts, **more}))
        self._comma = ",\n"

    def close(self) -> None:
        if not self._raw.closed:
            self._file.write("\n]}\n")
            self._file.close()
            self._raw.close()

    def __enter__(self) -> "TraceFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


class Sessions:
    """A device serves one session at a time: its track shows from when it turned to one until the user had it all."""

    def __init__(self, file: TraceFile, limit: int) -> None:
        self._file, self._limit = file, limit
        self.device: dict[str, str] = {}
        """Session -> its device, of the sessions that are drawn."""
        self.ended: set[str] = set()
        self._open: dict[str, dict[str, float]] = defaultdict(dict)
        """Device -> its sessions in the order of arrival, with when."""
        self._free_s: dict[str, float] = {}
        self._shown: set[str] = set()

    def begin(self, node: str, session: str, now: float) -> None:
        if len(self.device) < self._limit:
            self.device[session] = node
        self._open[node][session] = now

    def deliver(self, node: str, deliver: Deliver, now: float) -> None:
        arrived_s = self._open[node].get(deliver.session)
        if arrived_s is None:
            return
        if deliver.tokens and deliver.session in self.device:
            self._show(node, deliver, now - arrived_s, now)
        if deliver.ending:
            self._end(node, deliver.session, deliver.ending, now)

    def _show(self, node: str, deliver: Deliver, since_s: float, now: float) -> None:
        session, n = deliver.session, len(deliver.tokens)
        if session not in self._shown:
            self._shown.add(session)
            self._file.mark(node, "session", "first token", now, session=session, ttft_ms=1e3 * since_s)
        name = f"{n} token{'s' if n > 1 else ''}"
        about = {"tokens": list(deliver.tokens), "origins": list(deliver.origins)}
        self._file.mark(node, "tokens", name, now, session=session, **about)

    def _end(self, node: str, session: str, ending: str, now: float) -> None:
        """Only the device's oldest session was served; another one left while it waited for its turn."""
        self.ended.add(session)
        served = next(iter(self._open[node])) == session
        arrived_s = self._open[node].pop(session)
        begun_s = max(arrived_s, self._free_s.get(node, arrived_s))
        if served:
            self._free_s[node] = now
        if session not in self.device:
            return
        if served:
            waited_ms = 1e3 * (begun_s - arrived_s)
            self._file.slice(node, "session", session, begun_s, now, ending=ending, waited_ms=waited_ms)
        else:
            self._file.mark(node, "session", f"{session} {ending} while it waited", now)

    def lose(self, node: str, now: float) -> None:
        """The device starts again, or the log ends."""
        for session in list(self._open[node]):
            self._end(node, session, "unfinished", now)

    def close(self, now: float) -> None:
        for node in list(self._open):
            self.lose(node, now)


class Queues:
    """Requests that wait at workers: from their arrival to the start of their batch."""

    def __init__(self, file: TraceFile, sessions: Sessions) -> None:
        self._file, self._sessions = file, sessions
        self._since: dict[str, dict[str, float]] = defaultdict(dict)

    def arrive(self, node: str, session: str, now: float) -> None:
        if session not in self._since[node] and session not in self._sessions.ended:
            self._since[node][session] = now
            self._count(node, now)

    def leave(self, node: str, sessions: Sequence[str], now: float, why: str) -> None:
        """`why`: batch, or how else the wait ended."""
        left = [session for session in sessions if session in self._since[node]]
        for session in left:
            since_s = self._since[node].pop(session)
            if session in self._sessions.device:
                self._file.span(node, "queue", since_s, now, session=session, until=why)
        if left:
            self._count(node, now)

    def close(self, now: float) -> None:
        for node in list(self._since):
            self.lose(node, now)

    def lose(self, node: str, now: float) -> None:
        self.leave(node, list(self._since[node]), now, "unserved")

    def _count(self, node: str, now: float) -> None:
        self._file.counter(node, "waiting", now, len(self._since[node]))


@dataclass(slots=True)
class _Ask:
    session: str
    round: int
    drafts: int
    begin_s: float
    batches: list[Point] = field(default_factory=list)


class Verdicts:
    """From a device's question to its answer, with an arrow through the batches that answered it."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._asks: dict[str, _Ask] = {}
        """Device -> what it waits for."""
        self._device: dict[str, str] = {}

    def ask(self, node: str, request: Request, now: float) -> None:
        rows = request.rows
        if rows.rule:
            self.abandon(node, now)
            self._open(node, _Ask(rows.session, request.round, rows.check, now))

    def batch(self, node: str, rows: Rows, begin_s: float) -> None:
        ask = self._asks.get(self._device.get(rows.session, ""))
        if ask and ask.session == rows.session:
            ask.batches.append((node, "chip", microseconds(begin_s)))

    def answer(self, node: str, reply: Reply, now: float) -> None:
        ask = self._asks.get(node)
        if not ask or (ask.session, ask.round) != (reply.session, reply.round):
            return
        self._close(node, now, f"{reply.verdict.accepted} of {ask.drafts} accepted" if ask.drafts else "token")
        if reply.left:
            self._open(node, _Ask(reply.session, reply.round, 0, now))

    def abandon(self, node: str, now: float) -> None:
        if node in self._asks:
            self._asks[node].batches.clear()
            self._close(node, now, "abandoned")

    def leave(self, node: str, session: str, now: float) -> None:
        """The session is over, whatever it still waited for."""
        if node in self._asks and self._asks[node].session == session:
            self.abandon(node, now)

    def close(self, now: float) -> None:
        for node in list(self._asks):
            self.abandon(node, now)

    def _open(self, node: str, ask: _Ask) -> None:
        self._asks[node], self._device[ask.session] = ask, node

    def _close(self, node: str, now: float, how: str) -> None:
        ask = self._asks.pop(node)
        del self._device[ask.session]
        self._file.slice(node, "verdicts", how, ask.begin_s, now, session=ask.session, round=ask.round)
        if ask.batches:
            begin, end = microseconds(ask.begin_s), microseconds(now)
            points: list[Point] = [(node, "verdicts", begin), *ask.batches, (node, "verdicts", max(begin, end - 1))]
            self._file.flow("request", points)
