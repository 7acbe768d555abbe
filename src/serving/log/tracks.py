"""Writes a time line in the Trace Event Format (JSON), which ui.perfetto.dev and chrome://tracing open.

A node is a process of the trace, its tracks are threads. Times are whole microseconds, so that an end and the next
start do not overlap. Slices of one track must not overlap; spans may.

The `...Tracks` classes keep open sessions, queued requests and pending verdicts until they can be drawn.
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

from serving.log.waits import Wait, WaitingRequests
from serving.messages import Command, EmitTokens, Event, Reply, Request, SequenceSlice

Track: TypeAlias = Literal["session", "tokens", "verdicts", "chip"]
_TRACKS: tuple[Track, ...] = ("session", "tokens", "verdicts", "chip")
_THREADS_PER_PROCESS = 10
"""Thread ids per process; unique in the file and different from the process's own id."""

FlowPoint = tuple[str, Track, int]
"""(node, track, microsecond) inside a slice."""

_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def microseconds(at_s: float) -> int:
    return round(at_s * 1e6)


class TraceFile:
    """Streams to `path`, compressed if its name ends in .gz. A context manager."""

    def __init__(self, path: Path) -> None:
        raw = path.open("wb")
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) if path.name.endswith(".gz") else raw
        self._raw, self._file = raw, io.TextIOWrapper(io.BufferedWriter(packed), encoding="utf-8")
        self._pids: dict[str, int] = {}
        self._threads: set[int] = set()
        self._serial = count(1)
        self._separator = ""
        self._file.write('{"displayTimeUnit":"ms","traceEvents":[\n')

    def slice(self, node: str, track: Track, name: str, begin_s: float, end_s: float, **args: Any) -> None:
        begin, end = microseconds(begin_s), microseconds(end_s)
        self._write("X", name, begin, **self._thread(node, track), cat=track, dur=end - begin, args=args)

    def span(self, node: str, name: str, begin_s: float, end_s: float, **args: Any) -> None:
        ids: dict[str, Any] = {"pid": self._process(node), "cat": name.partition(" ")[0], "id": next(self._serial)}
        self._write("b", name, microseconds(begin_s), **ids, args=args)
        self._write("e", name, microseconds(end_s), **ids)

    def instant(self, node: str, track: Track, name: str, at_s: float, **args: Any) -> None:
        self._write("i", name, microseconds(at_s), **self._thread(node, track), s="t", cat=track, args=args)

    def counter(self, node: str, name: str, at_s: float, value: float) -> None:
        self._write("C", name, microseconds(at_s), pid=self._process(node), args={name: value})

    def flow(self, name: str, points: list[FlowPoint]) -> None:
        """Draws an arrow through slices."""
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
        where = {"pid": pid, "tid": _THREADS_PER_PROCESS * pid + place}
        if where["tid"] not in self._threads:
            self._threads.add(where["tid"])
            self._write("M", "thread_name", 0, **where, args={"name": track})
            self._write("M", "thread_sort_index", 0, **where, args={"sort_index": place})
        return where

    def _write(self, phase: str, name: str, ts: int, **more: Any) -> None:
        self._file.write(self._separator + _to_json({"ph": phase, "name": name, "ts": ts, **more}))
        self._separator = ",\n"

    def close(self) -> None:
        if not self._raw.closed:
            self._file.write("\n]}\n")
            self._file.close()
            self._raw.close()

    def __enter__(self) -> "TraceFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


class SessionTracks:
    """A device's track shows each session from its start to its end; those that it serves beside another are spans."""

    def __init__(self, file: TraceFile, limit: int) -> None:
        self._file, self._limit = file, limit
        self.device: dict[str, str] = {}
        """Session -> device, for the sessions that are drawn."""
        self.ended: set[str] = set()
        self._open: dict[str, dict[str, float]] = defaultdict(dict)
        """Device -> {session: arrival time}, in order of arrival."""
        self._device_free_s: dict[str, float] = {}
        self._begun_s: dict[str, float] = {}
        """Open session -> its first work, message or token."""
        self._has_first_token: set[str] = set()

    def begin(self, node: str, session: str, now: float) -> None:
        if len(self.device) < self._limit:
            self.device[session] = node
        self._open[node][session] = now

    def work(self, node: str, session: str, now: float) -> None:
        """The device works for the session, or asks for it."""
        if session in self._open[node]:
            self._begun_s.setdefault(session, now)

    def emit(self, node: str, emit: EmitTokens, now: float) -> None:
        arrived_s = self._open[node].get(emit.session)
        if arrived_s is None:
            return
        if emit.tokens:
            self.work(node, emit.session, now)
        if emit.tokens and emit.session in self.device:
            self._draw_tokens(node, emit, now - arrived_s, now)
        if emit.ending:
            self._end(node, emit.session, emit.ending, now)

    def _draw_tokens(self, node: str, emit: EmitTokens, since_s: float, now: float) -> None:
        session, n = emit.session, len(emit.tokens)
        if session not in self._has_first_token:
            self._has_first_token.add(session)
            self._file.instant(node, "session", "first token", now, session=session, ttft_ms=1e3 * since_s)
        name = f"{n} token{'s' if n > 1 else ''}"
        args = {"tokens": list(emit.tokens), "origins": list(emit.origins)}
        self._file.instant(node, "tokens", name, now, session=session, **args)

    def _end(self, node: str, session: str, ending: str, now: float) -> None:
        self.ended.add(session)
        is_oldest = next(iter(self._open[node])) == session
        arrived_s, work_s = self._open[node].pop(session), self._begun_s.pop(session, None)
        free_s = max(arrived_s, self._device_free_s.get(node, arrived_s))
        is_alone = is_oldest and (work_s is None or work_s >= free_s)
        if is_alone:
            self._device_free_s[node] = now
        if session not in self.device:
            return
        if is_alone:
            waited_ms = 1e3 * (free_s - arrived_s)
            self._file.slice(node, "session", session, free_s, now, ending=ending, waited_ms=waited_ms)
        elif work_s is not None:
            waited_ms = 1e3 * (work_s - arrived_s)
            self._file.span(node, f"session {session}", work_s, now, ending=ending, waited_ms=waited_ms)
        else:
            self._file.instant(node, "session", f"{session} {ending} while it waited", now)

    def abort_all(self, node: str, now: float) -> None:
        """Ends all sessions, because the device restarts or the log ends."""
        for session in list(self._open[node]):
            self._end(node, session, "unfinished", now)

    def close(self, now: float) -> None:
        for node in list(self._open):
            self.abort_all(node, now)


class QueueTracks:
    """A span for each wait of a request at a worker, and the number of those that wait there."""

    def __init__(self, file: TraceFile, sessions: SessionTracks) -> None:
        self._file, self._sessions = file, sessions
        self._requests = WaitingRequests(lambda session: session not in sessions.ended)
        self._num_drawn: dict[str, int] = {}
        """Node -> the number that was drawn last."""

    def update(self, node: str, seen: Event | Command, now: float) -> None:
        self._draw(node, self._requests.update(node, seen, now), now)

    def abort_all(self, node: str, now: float) -> None:
        """Ends all waits at a node, because it restarts or the log ends."""
        self._draw(node, self._requests.abandon(node, now), now)

    def close(self, now: float) -> None:
        for node in self._num_drawn:
            self.abort_all(node, now)

    def _draw(self, node: str, waits: Sequence[Wait], now: float) -> None:
        for wait in waits:
            if wait.session in self._sessions.device:
                self._file.span(node, "queue", wait.begin_s, wait.end_s, session=wait.session, until=wait.until)
        if (waiting := self._requests.num_waiting(node)) != self._num_drawn.get(node, 0):
            self._num_drawn[node] = waiting
            self._file.counter(node, "waiting", now, waiting)


@dataclass(slots=True)
class _PendingVerdict:
    device: str
    session: str
    attempt: int
    drafts: int
    begin_s: float
    batches: list[FlowPoint] = field(default_factory=list)


class VerdictTracks:
    """From a device's request to its reply, with an arrow through the batches of the request.

    A wait that began during another one of the same device is a span, without an arrow.
    """

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._pending: dict[str, _PendingVerdict] = {}
        """Session -> its pending verdict."""
        self._drawn_until_s: dict[str, float] = {}
        """Device -> the end of its last slice."""

    def start(self, node: str, request: Request, now: float) -> None:
        seq = request.slice
        if seq.rule:
            self.end_session(node, seq.session, now)
            self._pending[seq.session] = _PendingVerdict(node, seq.session, request.attempt, seq.num_drafts, now)

    def add_batch(self, node: str, seq: SequenceSlice, begin_s: float) -> None:
        if pending := self._pending.get(seq.session):
            pending.batches.append((node, "chip", microseconds(begin_s)))

    def finish(self, node: str, reply: Reply, now: float) -> None:
        pending = self._pending.get(reply.session)
        if not pending or (pending.device, pending.attempt) != (node, reply.attempt):
            return
        self._close(
            pending, now, f"{reply.verdict.accepted} of {pending.drafts} accepted" if pending.drafts else "token"
        )
        if reply.remaining_budget:
            self._pending[reply.session] = _PendingVerdict(node, reply.session, reply.attempt, 0, now)

    def abandon(self, node: str, now: float) -> None:
        """Abandons the pending verdicts of a device."""
        for pending in [each for each in self._pending.values() if each.device == node]:
            self.end_session(node, pending.session, now)

    def end_session(self, node: str, session: str, now: float) -> None:
        """Abandons the pending verdict of a session that ended, or asks again."""
        pending = self._pending.get(session)
        if pending and pending.device == node:
            pending.batches.clear()
            self._close(pending, now, "abandoned")

    def close(self, now: float) -> None:
        for pending in list(self._pending.values()):
            self.end_session(pending.device, pending.session, now)

    def _close(self, pending: _PendingVerdict, now: float, outcome: str) -> None:
        del self._pending[pending.session]
        node, args = pending.device, {"session": pending.session, "attempt": pending.attempt}
        if pending.begin_s < self._drawn_until_s.get(node, pending.begin_s):
            self._file.span(node, f"verdict {outcome}", pending.begin_s, now, **args)
            return
        self._drawn_until_s[node] = now
        self._file.slice(node, "verdicts", outcome, pending.begin_s, now, **args)
        if pending.batches:
            begin, end = microseconds(pending.begin_s), microseconds(now)
            points: list[FlowPoint] = [
                (node, "verdicts", begin),
                *pending.batches,
                (node, "verdicts", max(begin, end - 1)),
            ]
            self._file.flow("request", points)
