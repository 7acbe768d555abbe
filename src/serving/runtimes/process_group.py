"""The processes of a distributed run: started, introduced to each other, killed and started again as testbeds say."""

import multiprocessing as mp
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.deployment.topology import Topology
from serving.drivers.observer import Observer
from serving.drivers.real_time import PacingStats
from serving.messages import INF
from serving.metrics.recorder import Recorder, SessionRecord
from serving.progress import Progress
from serving.runtimes.clients import WorkloadClients
from serving.runtimes.failures import FailureSchedule
from serving.runtimes.node_process import NodeProcessConfig, run_node_process
from serving.transport.shaping.tc import ApplyShaping

if TYPE_CHECKING:
    from serving.deployment.queries import Query
    from serving.runtimes.grpc import Grpc

_STOP_TIMEOUT_S = 5.0
"""How long a process that was told to stop may take."""


class ProcessGroup:
    """The processes of one run."""

    def __init__(
        self, runtime: "Grpc", topology: Topology, queries: "Sequence[Query]", accelerator: str, folder: Path,
        shape: ApplyShaping | None,
    ) -> None:  # fmt: skip
        self.runtime, self.topology, self.queries = runtime, topology, queries
        self.accelerator, self.folder, self.shape = accelerator, folder, shape
        self.pipes: dict[str, Connection] = {}
        self.processes: dict[str, BaseProcess] = {}
        self.addresses: dict[str, str] = {}
        """Of each cloud process."""
        self.origin_s = 0.0
        self.failure_schedule = FailureSchedule(topology)
        self._context = mp.get_context("spawn")
        self._restarts: dict[str, int] = {}

    def run(self, progress: Progress) -> dict[str, PacingStats]:
        """Starts everybody, lets them meet, waits until all is answered; how well each process kept the pace."""
        cast, crowd = self.topology, min(self.runtime.device_processes, len(self.topology.devices))
        clouds = {names[0]: names for names in cast.cloud_processes}
        devices = {f"devices-{i}": cast.devices[i::crowd] for i in range(crowd)}
        with self._running({**clouds, **devices}):
            self.addresses = {name: self._receive_from(name, "listening") for name in clouds}
            if self.shape:
                self.shape(self.addresses.values())
            for name in clouds:
                self._connect_upstream(name)
            listening = {node: self.addresses[name] for name, nodes in clouds.items() for node in nodes}
            self._send(devices, "dial", (listening, tuple(listening)))
            for name in (*clouds, *devices):
                self._receive_from(name, "joined")
            self.origin_s = time.monotonic()
            self._send(self.pipes, "play", self.origin_s)
            self._wait_until_answered(progress)
            self._send(self.pipes, "stop", None)
            return {name: self._receive_from(name, "done") for name in self.pipes}

    def collect_records(self, observers: Sequence[Observer]) -> dict[str, SessionRecord]:
        """What all journals together say, as if one driver had been watched."""
        from serving.log.entries import feed_observer
        from serving.log.reader import merge_logs

        recorder = Recorder(self.topology.devices)
        for observer in (recorder, *observers):
            feed_observer(merge_logs(sorted(self.folder.glob("*.jsonl"))), observer)
        WorkloadClients(self.queries, self.topology.devices).check_all_ended(recorder.records)
        return recorder.records

    def _connect_upstream(self, cloud: str) -> None:
        """To the nodes of earlier tiers, which it dials; it waits for those that run."""
        before = {node: self.addresses[node] for node in self.topology.upstream_nodes(cloud)}
        self._send([cloud], "dial", (before, tuple(node for node in before if node in self.pipes)))

    def _wait_until_answered(self, progress: Progress) -> None:
        ended: set[str] = set()
        while len(ended) < len(self.queries):
            now = time.monotonic() - self.origin_s
            for name in self.failure_schedule.due(now):
                self._kill_or_restart(name)
            for line in wait(list(self.pipes.values()), self.failure_schedule.next_in_s(now)):
                assert isinstance(line, Connection)
                ended.add(self._receive(line, "ended"))
            progress(len(ended), len(self.queries), f"{time.monotonic() - self.origin_s:.0f} s of real time")

    # Who fails, and comes back.

    def _kill_or_restart(self, name: str) -> None:
        """A node that runs is killed, with no word to anybody; one that does not is started again."""
        if name in self.pipes:
            self.processes[name].kill()
            self.processes[name].join()
            self.pipes.pop(name).close()
            return
        self._start(name, (name,), self.addresses[name])
        self._receive_from(name, "listening")
        self._connect_upstream(name)
        self._receive_from(name, "joined")
        self._send([name], "play", self.origin_s)

    # Processes.

    @contextmanager
    def _running(self, parts: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
        try:
            for name, nodes in parts.items():
                self._start(name, nodes)
            yield
            for process in self.processes.values():
                process.join(_STOP_TIMEOUT_S)
        finally:
            for process in self.processes.values():
                process.terminate()
                process.join()

    def _start(self, name: str, nodes: tuple[str, ...], listen: str = "127.0.0.1:0") -> None:
        here, there = self._context.Pipe()
        self._restarts[name] = self._restarts.get(name, -1) + 1
        part = self._process_config(name, nodes, listen)
        # no daemon: a cloud may start processes of its own; they all end with the line to their parent
        process = self._context.Process(target=run_node_process, args=(part, there), name=name)
        process.start()
        there.close()
        self.pipes[name], self.processes[name] = here, process

    def _process_config(self, name: str, nodes: tuple[str, ...], listen: str) -> NodeProcessConfig:
        runtime, cast = self.runtime, self.topology
        queries = tuple(q for q in self.queries if cast.devices[q.device] in nodes)
        return NodeProcessConfig(
            cast.setup, cast.layers, nodes, queries, runtime.pace, runtime.shaping == "user",
            runtime.timeout_s or INF, self.accelerator, listen, runtime.security, runtime.limits, cast.digest,
            self.folder / f"{name}.{self._restarts.get(name, 0)}.jsonl",
        )  # fmt: skip

    # The pipes.

    def _send(self, names: Iterable[str], kind: str, value: Any) -> None:
        for name in names:
            self.pipes[name].send((kind, value))

    def _receive_from(self, name: str, kind: str) -> Any:
        return self._receive(self.pipes[name], kind)

    def _receive(self, pipe: Connection, kind: str) -> Any:
        try:
            said, value = pipe.recv()
        except EOFError:
            name = next(name for name, each in self.pipes.items() if each is pipe)
            raise RuntimeError(f"the process {name} died; what it said is above") from None
        if said != kind:
            raise RuntimeError(value if said == "failed" else f"a process said {said!r} where {kind!r} was due")
        return value
