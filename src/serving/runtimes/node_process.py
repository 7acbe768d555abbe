"""A child process of a distributed run: its nodes, the clients of its devices, its event log."""

import asyncio
import signal
import sys
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import format_exception, walk_tb
from typing import TYPE_CHECKING, Any

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
from serving.drivers.clock import WallClock
from serving.drivers.real_time import Pace, RealTimeDriver
from serving.messages import INF
from serving.nodes.device import is_device
from serving.runtimes.clients import WorkloadClients
from serving.runtimes.failures import LinkOutageInjector
from serving.transport.limits import Limits
from serving.transport.security import Security

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from serving.runtimes.host import NodeHost


_CONNECT_TIMEOUT_S = 60.0
"""A process starts slowly on a busy machine."""


@dataclass(frozen=True)
class ProcessOptions:
    """Options of all processes of a run."""

    pace: Pace = "wall"
    shaped: bool = True
    """True if the process itself delays messages as the named links do."""
    timeout_s: float = INF
    """Seconds that a device waits for an answer before it sends its request again."""
    accelerator: str = "cpu"
    security: Security = field(default_factory=Security)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class NodeProcessConfig:
    """The arguments of a child process. Child and parent then exchange (kind, value) over a pipe.

    A cloud process sends `listening` with its address. The parent sends `dial` with the addresses to connect to and the
    nodes that run; the child sends `joined` when it reaches all of these. The parent sends `play` with the origin of
    the clock; a device process sends `ended` for each session. The parent sends `stop`, the child answers `done`. The
    child may send `failed` at any time.
    """

    setup: Setup
    layers: int
    node_names: tuple[str, ...]
    queries: "tuple[Query, ...]"
    options: ProcessOptions
    listen_address: str
    digest: str
    event_log_path: Path

    @property
    def is_cloud(self) -> bool:
        return not is_device(self.node_names[0])


@dataclass(frozen=True)
class NodeFailure:
    """What ended a child process, in a form that a pipe carries."""

    text: str
    frames: tuple[tuple[str, str, int], ...]
    """(module, file, line) of each frame, the outermost first."""
    trace: str

    @classmethod
    def of(cls, node_names: tuple[str, ...], problem: Exception) -> "NodeFailure":
        frames = tuple(
            (str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename, line)
            for frame, line in walk_tb(problem.__traceback__)
        )
        text = f"{', '.join(node_names)}: {type(problem).__name__}: {problem}"
        return cls(text, frames, "".join(format_exception(problem)))


class NodeProcessError(RuntimeError):
    """A child process has failed. Its traceback is a note of the error."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.text)
        self.remote_frames = failure.frames
        self.add_note(failure.trace)


def run_node_process(config: NodeProcessConfig, pipe: Connection) -> None:
    """The main function of the child process. It ends when the parent sends `stop` or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent sends stop
    try:
        asyncio.run(_NodeProcess(config, pipe).run())
    except EOFError:
        sys.exit(1)  # the parent is gone
    except Exception as problem:
        pipe.send(("failed", NodeFailure.of(config.node_names, problem)))
        sys.exit(1)


class _NodeProcess:
    def __init__(self, config: NodeProcessConfig, pipe: Connection) -> None:
        self.config, self.pipe = config, pipe
        self.topology = Topology(config.setup, config.layers, config.options.timeout_s)

    async def run(self) -> None:
        from serving.deployment.model_loading import load_side
        from serving.engines.torch.tensor_store import TensorStore
        from serving.runtimes.host import NodeHost

        config, options, tensor_store = self.config, self.config.options, TensorStore()
        tier = self.topology.tier_of[config.node_names[0]] if config.is_cloud and config.setup.hardware.tiers else None
        models = load_side(
            config.setup, "cloud" if config.is_cloud else "device", tensor_store, options.accelerator, tier=tier
        )
        with closing(models):
            host = NodeHost(
                self.topology,
                config.node_names,
                tensor_store,
                options.security,
                options.limits,
                config.digest,
                len(models.tokenizer),
                models.hidden_size,
            )
            try:
                await self._connect(host)
                await self._serve(host, models, await self._receive("play"))
            finally:
                await host.close()

    async def _connect(self, host: "NodeHost") -> None:
        if self.config.is_cloud:
            self.pipe.send(("listening", await host.listen(self.config.listen_address)))
        addresses, running = await self._receive("dial")
        await host.connect(addresses)
        await host.wait_until_reachable(running, _CONNECT_TIMEOUT_S)
        self.pipe.send(("joined", None))

    async def _serve(self, host: "NodeHost", models: "LoadedModels", origin_s: float) -> None:
        from serving.log.event_log import EventLog

        node_names, options = self.config.node_names, self.config.options
        with EventLog(self.config.event_log_path, {"names": list(node_names)}) as event_log:
            stop = asyncio.create_task(self._receive("stop"))
            outages = LinkOutageInjector(self.topology, node_names, lambda *event: driver.post(*event), stop.done)
            driver = RealTimeDriver(WallClock(origin_s), [event_log, outages], options.pace)
            add_nodes(driver, self.topology, ChipFactory(self.topology, models, self.config.queries), node_names)
            for name in node_names:
                event_log.node_created(name, driver.now())
            if options.shaped:
                connect_nodes(driver, self.topology)
                outages.start()
            host.start(driver)
            self._start_clients(driver)
            stop.add_done_callback(lambda _: driver.wake_up())
            try:
                await driver.run(stop.done)
                await stop
            finally:
                stop.cancel()
                driver.close()
        self.pipe.send(("done", driver.pacing))

    def _start_clients(self, driver: RealTimeDriver) -> None:
        """Starts the clients of this process's devices; a cloud process has none."""
        clients = WorkloadClients(self.config.queries, self.topology.devices)
        driver.on_session_end(partial(clients.on_session_end, post=driver.post))
        driver.on_session_end(lambda session, _: self.pipe.send(("ended", session)))
        clients.start(driver.post)

    async def _receive(self, kind: str) -> Any:
        """The value of the parent's next message. Raises RuntimeError for a message of another kind.

        A thread that waited in `recv` could not be cancelled, and would keep a process that has failed from ending.
        """
        readable, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self.pipe.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.pipe.fileno())
        received, value = self.pipe.recv()
        if received != kind:
            raise RuntimeError(f"the parent sent {received!r} where {kind!r} was due")
        return value
