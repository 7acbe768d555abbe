"""The processes of a distributed run: started, introduced to each other, killed and started again as testbeds say."""

import multiprocessing as mp
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.deployment.topology import Cast
from serving.drivers.observer import Observer
from serving.drivers.real_time import Pacing
from serving.messages import INF
from serving.metrics.recorder import Record, Recorder
from serving.progress import Progress
from serving.runtimes.clients import Users
from serving.runtimes.failures import Fate
from serving.runtimes.node_process import Part, play
from serving.transport.shaping.tc import Shape

if TYPE_CHECKING:
    from serving.deployment.queries import Query
    from serving.runtimes.grpc import Grpc

_LEAVING_S = 5.0
"""How long a process that was told to stop may take."""


class Crew:
    """The processes of one run."""

    def __init__(
        self, runtime: "Grpc", cast: Cast, queries: "Sequence[Query]", accelerator: str, folder: Path,
        shape: Shape | None,
    ) -> None:  # fmt: skip
        self.runtime, self.cast, self.queries = runtime, cast, queries
        self.accelerator, self.folder, self.shape = accelerator, folder, shape
        self.lines: dict[str, Connection] = {}
        self.processes: dict[str, BaseProcess] = {}
        self.addresses: dict[str, str] = {}
        """Of each cloud process."""
        self.origin_s = 0.0
        self.fate = Fate(cast)
        self._context = mp.get_context("spawn")
        self._lives: dict[str, int] = {}

    def play(self, progress: Progress) -> dict[str, Pacing]:
        """Starts everybody, lets them meet, waits until all is answered; how well each process kept the pace."""
        cast, crowd = self.cast, min(self.runtime.device_processes, len(self.cast.devices))
        clouds = {names[0]: names for names in cast.clouds}
        devices = {f"devices-{i}": cast.devices[i::crowd] for i in range(crowd)}
        with self._running({**clouds, **devices}):
            self.addresses = {name: self._hear(name, "listening") for name in clouds}
            if self.shape:
                self.shape(self.addresses.values())
            for name in clouds:
                self._introduce(name)
            listening = {node: self.addresses[name] for name, nodes in clouds.items() for node in nodes}
            self._tell(devices, "dial", (listening, tuple(listening)))
            for name in (*clouds, *devices):
                self._hear(name, "joined")
            self.origin_s = time.monotonic()
            self._tell(self.lines, "play", self.origin_s)
            self._wait_for_all(progress)
            self._tell(self.lines, "stop", None)
            return {name: self._hear(name, "done") for name in self.lines}

    def records(self, observers: Sequence[Observer]) -> dict[str, Record]:
        """What all journals together say, as if one driver had been watched."""
        from serving.log.entries import feed
        from serving.log.reader import merge

        recorder = Recorder(self.cast.devices)
        for observer in (recorder, *observers):
            feed(merge(sorted(self.folder.glob("*.jsonl"))), observer)
        Users(self.queries, self.cast.devices).check(recorder.records)
        return recorder.records

    def _introduce(self, cloud: str) -> None:
        """To the nodes of earlier tiers, which it dials; it waits for those that run."""
        before = {node: self.addresses[node] for node in self.cast.before(cloud)}
        self._tell([cloud], "dial", (before, tuple(node for node in before if node in self.lines)))

    def _wait_for_all(self, progress: Progress) -> None:
        ended: set[str] = set()
        while len(ended) < len(self.queries):
            now = time.monotonic() - self.origin_s
            for name in self.fate.due(now):
                self._turn(name)
            for line in wait(list(self.lines.values()), self.fate.rest_s(now)):
                assert isinstance(line, Connection)
                ended.add(self._next(line, "ended"))
            progress(len(ended), len(self.queries), f"{time.monotonic() - self.origin_s:.0f} s of real time")

    # Who fails, and comes back.

    def _turn(self, name: str) -> None:
        """A node that runs is killed, with no word to anybody; one that does not is started again."""
        if name in self.lines:
            self.processes[name].kill()
            self.processes[name].join()
            self.lines.pop(name).close()
            return
        self._start(name, (name,), self.addresses[name])
        self._hear(name, "listening")
        self._introduce(name)
        self._hear(name, "joined")
        self._tell([name], "play", self.origin_s)

    # Processes.

    @contextmanager
    def _running(self, parts: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
        try:
            for name, nodes in parts.items():
                self._start(name, nodes)
            yield
            for process in self.processes.values():
                process.join(_LEAVING_S)
        finally:
            for process in self.processes.values():
                process.terminate()
                process.join()

    def _start(self, name: str, nodes: tuple[str, ...], listen: str = "127.0.0.1:0") -> None:
        here, there = self._context.Pipe()
        self._lives[name] = self._lives.get(name, -1) + 1
        part = self._part(name, nodes, listen)
        # no daemon: a cloud may start processes of its own; they all end with the line to their parent
        process = self._context.Process(target=play, args=(part, there), name=name)
        process.start()
        there.close()
        self.lines[name], self.processes[name] = here, process

    def _part(self, name: str, nodes: tuple[str, ...], listen: str) -> Part:
        runtime, cast = self.runtime, self.cast
        queries = tuple(q for q in self.queries if cast.devices[q.device] in nodes)
        return Part(
            cast.setup, cast.layers, nodes, queries, runtime.pace, runtime.shaping == "user",
            runtime.timeout_s or INF, self.accelerator, listen, runtime.security, runtime.limits, cast.digest,
            self.folder / f"{name}.{self._lives.get(name, 0)}.jsonl",
        )  # fmt: skip

    # The pipes.

    def _tell(self, names: Iterable[str], word: str, value: Any) -> None:
        for name in names:
            self.lines[name].send((word, value))

    def _hear(self, name: str, word: str) -> Any:
        return self._next(self.lines[name], word)

    def _next(self, line: Connection, word: str) -> Any:
        try:
            said, value = line.recv()
        except EOFError:
            name = next(name for name, each in self.lines.items() if each is line)
            raise RuntimeError(f"the process {name} died; what it said is above") from None
        if said != word:
            raise RuntimeError(value if said == "failed" else f"a process said {said!r} where {word!r} was due")
        return value
