"""Writes a time line in the Trace Event Format (JSON), which ui.perfetto.dev and chrome://tracing open.

A node is a process of the trace, a track of it a thread. Times are whole microseconds, so that what ends when the next
begins does not overlap it. Slices of one track must not overlap; spans may, each is of its own.
"""

import gzip
import io
import json
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

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
