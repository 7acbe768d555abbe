"""The processes of a distributed run: starts and connects them, kills and restarts them as the testbed says."""

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
from serving.metrics.recorder import Recorder, SessionRecord
from serving.progress import Progress
from serving.runtimes.clients import WorkloadClients
from serving.runtimes.failures import FailureSchedule
from serving.runtimes.node_process import NodeProcessConfig, NodeProcessError, ProcessOptions, run_node_process
from serving.transport.shaping.tc import ApplyShaping

if TYPE_CHECKING:
    from serving.deployment.queries import Query

_STOP_TIMEOUT_S = 5.0
"""Time that a process may take to stop."""


class ProcessGroup:
    """The processes of one run."""

    def __init__(
        self,
        topology: Topology,
        queries: "Sequence[Query]",
        options: ProcessOptions,
        device_processes: int,
        folder: Path,
        apply_shaping: ApplyShaping | None = None,
    ) -> None:
        self.topology, self.queries, self.options, self.folder = topology, queries, options, folder
        self._device_processes, self._apply_shaping = min(device_processes, len(topology.devices)), apply_shaping
        self.pipes: dict[str, Connection] = {}
        self.processes: dict[str, BaseProcess] = {}
        self.addresses: dict[str, str] = {}
        """The address of each cloud process."""
        self.origin_s = 0.0
        self.failure_schedule = FailureSchedule(topology)
        self._context = mp.get_context("spawn")
        self._restarts: dict[str, int] = {}

    def run(self, progress: Progress) -> dict[str, PacingStats]:
        """Starts all processes, connects them, and waits for all answers. Returns each process's pacing."""
        n = self._device_processes
        clouds = {names[0]: names for names in self.topology.cloud_processes}
        devices = {f"devices-{i}": self.topology.devices[i::n] for i in range(n)}
        with self._running({**clouds, **devices}):
            self.addresses = {name: self._receive_from(name, "listening") for name in clouds}
            if self._apply_shaping:
                self._apply_shaping(self.addresses.values())
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
        """The records that the event logs of all processes give when they are merged in time."""
        from serving.log.event_log import feed_observer
        from serving.log.reader import merge_logs

        recorder = Recorder(self.topology.devices)
        for observer in (recorder, *observers):
            feed_observer(merge_logs(sorted(self.folder.glob("*.jsonl"))), observer)
        WorkloadClients(self.queries, self.topology.devices).check_all_ended(recorder.records)
        return recorder.records

    def _connect_upstream(self, cloud: str) -> None:
        """Makes a cloud process dial the nodes of earlier tiers; it waits for those that run."""
        addresses = {node: self.addresses[node] for node in self.topology.upstream_nodes(cloud)}
        self._send([cloud], "dial", (addresses, tuple(node for node in addresses if node in self.pipes)))

    def _wait_until_answered(self, progress: Progress) -> None:
        ended: set[str] = set()
        while len(ended) < len(self.queries):
            for name in self.failure_schedule.due(self._now()):
                self._kill_or_restart(name)
            for pipe in wait(list(self.pipes.values()), self.failure_schedule.next_in_s(self._now())):
                assert isinstance(pipe, Connection)
                ended.add(self._receive(pipe, "ended"))
            progress(len(ended), len(self.queries), f"{self._now():.0f} s of real time")

    def _now(self) -> float:
        """Seconds of the run's clock."""
        return time.monotonic() - self.origin_s

    # Failures.

    def _kill_or_restart(self, name: str) -> None:
        """Kills a node that runs, without notice to its peers; starts one again that does not."""
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
    def _running(self, nodes_of: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
        try:
            for name, nodes in nodes_of.items():
                self._start(name, nodes)
            yield
            for process in self.processes.values():
                process.join(_STOP_TIMEOUT_S)
        finally:
            for process in self.processes.values():
                process.terminate()
                process.join()

    def _start(self, name: str, nodes: tuple[str, ...], listen: str = "127.0.0.1:0") -> None:
        pipe, child_pipe = self._context.Pipe()
        self._restarts[name] = self._restarts.get(name, -1) + 1
        config = self._process_config(name, nodes, listen)
        # no daemon: a cloud process may start processes of its own; all end with the pipe to their parent
        process = self._context.Process(target=run_node_process, args=(config, child_pipe), name=name)
        process.start()
        child_pipe.close()
        self.pipes[name], self.processes[name] = pipe, process

    def _process_config(self, name: str, nodes: tuple[str, ...], listen: str) -> NodeProcessConfig:
        topology = self.topology
        queries = tuple(q for q in self.queries if topology.devices[q.device] in nodes)
        event_log = self.folder / f"{name}.{self._restarts.get(name, 0)}.jsonl"
        return NodeProcessConfig(
            topology.setup, topology.layers, nodes, queries, self.options, listen, topology.digest, event_log
        )

    # The pipes.

    def _send(self, names: Iterable[str], kind: str, value: Any) -> None:
        for name in names:
            self.pipes[name].send((kind, value))

    def _receive_from(self, name: str, kind: str) -> Any:
        return self._receive(self.pipes[name], kind)

    def _receive(self, pipe: Connection, kind: str) -> Any:
        try:
            received, value = pipe.recv()
        except EOFError:
            name = next(name for name, each in self.pipes.items() if each is pipe)
            raise RuntimeError(f"the process {name} died; its output is above") from None
        if received == "failed":
            raise NodeProcessError(value)
        if received != kind:
            raise RuntimeError(f"a process sent {received!r} where {kind!r} was due")
        return value
