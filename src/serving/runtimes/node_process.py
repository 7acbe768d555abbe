"""One process's part of a distributed run: its nodes, its users' questions, its journal. Runs in a child process."""

import asyncio
import signal
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
from serving.drivers.clock import WallClock
from serving.drivers.real_time import Pace, RealTimeDriver
from serving.runtimes.clients import WorkloadClients
from serving.runtimes.failures import LinkOutageInjector
from serving.transport.limits import Limits
from serving.transport.security import Security

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from serving.runtimes.host import NodeHost


_CONNECT_TIMEOUT_S = 60.0
"""On a busy machine a process takes its time to start."""


@dataclass(frozen=True)
class NodeProcessConfig:
    """What a child process is told. It and its parent then talk in (word, value) over a pipe.

    A cloud says `listening`; all hear `dial`, with the addresses of those whom they reach out to and with who of them
    runs, and say `joined` when they have met these; all hear `play` with the origin of the clock, a device says `ended`
    of each session, and all hear `stop` and say `done`. `failed` may come at any time.
    """

    setup: Setup
    layers: int
    node_names: tuple[str, ...]
    queries: "tuple[Query, ...]"
    pace: Pace
    shaped: bool
    timeout_s: float
    accelerator: str
    listen_address: str
    security: Security
    limits: Limits
    digest: str
    event_log_path: Path

    @property
    def is_cloud(self) -> bool:
        return not self.node_names[0].startswith("device-")


def run_node_process(config: NodeProcessConfig, pipe: Connection) -> None:
    """The child's whole life; the parent decides when it ends, also by dying."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal: the parent says stop
    try:
        asyncio.run(_NodeProcess(config, pipe).run())
    except EOFError:
        sys.exit(1)  # the parent is gone
    except Exception as problem:
        pipe.send(("failed", f"{', '.join(config.node_names)}: {type(problem).__name__}: {problem}"))
        raise


class _NodeProcess:
    def __init__(self, config: NodeProcessConfig, pipe: Connection) -> None:
        self.config, self.pipe = config, pipe
        self.topology = Topology(config.setup, config.layers, config.timeout_s)

    async def run(self) -> None:
        from serving.deployment.model_loading import load_side
        from serving.engines.torch.tensor_store import TensorStore
        from serving.runtimes.host import NodeHost

        part, blobs = self.config, TensorStore()
        tier = self.topology.tier_of[part.node_names[0]] if part.is_cloud and part.setup.hardware.tiers else None
        models = load_side(part.setup, "cloud" if part.is_cloud else "device", blobs, part.accelerator, tier=tier)
        with closing(models):
            host = NodeHost(
                self.topology, part.node_names, blobs, part.security, part.limits, part.digest, len(models.tokenizer)
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

        part = self.config
        with EventLog(part.event_log_path, {"names": list(part.node_names)}) as journal:
            stop = asyncio.create_task(self._receive("stop"))
            breaks = LinkOutageInjector(self.topology, part.node_names, lambda *what: live.post(*what), stop.done)
            live = RealTimeDriver(WallClock(origin_s), [journal, breaks], part.pace)
            add_nodes(live, self.topology, ChipFactory(self.topology, models, part.queries), part.node_names)
            for name in part.node_names:
                journal.node_created(name, live.now())
            if part.shaped:
                connect_nodes(live, self.topology)
                breaks.start()
            host.start(live)
            self._start_clients(live)
            stop.add_done_callback(lambda _: live.wake_up())
            try:
                await live.run(stop.done)
                await stop
            finally:
                stop.cancel()
                live.close()
        self.pipe.send(("done", live.pacing))

    def _start_clients(self, driver: RealTimeDriver) -> None:
        """Seats the users of this process's devices; a cloud has none."""
        users = WorkloadClients(self.config.queries, self.topology.devices)
        driver.on_session_end(partial(users.on_session_end, post=driver.post))
        driver.on_session_end(lambda session, _: self.pipe.send(("ended", session)))
        users.start(driver.post)

    async def _receive(self, kind: str) -> Any:
        """The next thing that the parent says, which must be that word."""
        said, value = await asyncio.to_thread(self.pipe.recv)
        if said != kind:
            raise RuntimeError(f"the parent said {said!r} where {kind!r} was due")
        return value
