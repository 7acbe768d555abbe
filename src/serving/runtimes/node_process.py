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
from serving.deployment.topology import Cast
from serving.deployment.wiring import Chips, link, populate
from serving.drivers.clock import Wall
from serving.drivers.real_time import Live, Pace
from serving.runtimes.clients import Users
from serving.runtimes.failures import Breaks
from serving.transport.limits import Limits
from serving.transport.security import Security

if TYPE_CHECKING:
    from serving.deployment.queries import Models, Query
    from serving.runtimes.host import Host


_MEETING_S = 60.0
"""On a busy machine a process takes its time to start."""


@dataclass(frozen=True)
class Part:
    """What a child process is told. It and its parent then talk in (word, value) over a pipe.

    A cloud says `listening`; all hear `dial`, with the addresses of those whom they reach out to and with who of them
    runs, and say `joined` when they have met these; all hear `play` with the origin of the clock, a device says `ended`
    of each session, and all hear `stop` and say `done`. `failed` may come at any time.
    """

    setup: Setup
    layers: int
    names: tuple[str, ...]
    queries: "tuple[Query, ...]"
    pace: Pace
    shaped: bool
    timeout_s: float
    accelerator: str
    listen: str
    security: Security
    limits: Limits
    digest: str
    journal: Path

    @property
    def is_cloud(self) -> bool:
        return not self.names[0].startswith("device-")


def play(part: Part, line: Connection) -> None:
    """The child's whole life; the parent decides when it ends, also by dying."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal: the parent says stop
    try:
        asyncio.run(_Player(part, line).play())
    except EOFError:
        sys.exit(1)  # the parent is gone
    except Exception as problem:
        line.send(("failed", f"{', '.join(part.names)}: {type(problem).__name__}: {problem}"))
        raise


class _Player:
    def __init__(self, part: Part, line: Connection) -> None:
        self.part, self.line = part, line
        self.cast = Cast(part.setup, part.layers, part.timeout_s)

    async def play(self) -> None:
        from serving.deployment.model_loading import open_side
        from serving.engines.torch.tensor_store import Blobs
        from serving.runtimes.host import Host

        part, blobs = self.part, Blobs()
        tier = self.cast.tier_of[part.names[0]] if part.is_cloud and part.setup.hardware.tiers else None
        models = open_side(part.setup, "cloud" if part.is_cloud else "device", blobs, part.accelerator, tier=tier)
        with closing(models):
            host = Host(self.cast, part.names, blobs, part.security, part.limits, part.digest, len(models.tokenizer))
            try:
                await self._meet(host)
                await self._serve(host, models, await self._hear("play"))
            finally:
                await host.close()

    async def _meet(self, host: "Host") -> None:
        if self.part.is_cloud:
            self.line.send(("listening", await host.listen(self.part.listen)))
        addresses, running = await self._hear("dial")
        await host.dial(addresses)
        await host.reached(running, _MEETING_S)
        self.line.send(("joined", None))

    async def _serve(self, host: "Host", models: "Models", origin_s: float) -> None:
        from serving.log.event_log import Journal

        part = self.part
        with Journal(part.journal, {"names": list(part.names)}) as journal:
            stop = asyncio.create_task(self._hear("stop"))
            breaks = Breaks(self.cast, part.names, lambda *what: live.post(*what), stop.done)
            live = Live(Wall(origin_s), [journal, breaks], part.pace)
            populate(live, self.cast, Chips(self.cast, models, part.queries), part.names)
            for name in part.names:
                journal.born(name, live.now())
            if part.shaped:
                link(live, self.cast)
                breaks.begin()
            host.play(live)
            self._ask(live)
            stop.add_done_callback(lambda _: live.stir())
            try:
                await live.run(stop.done)
                await stop
            finally:
                stop.cancel()
                live.close()
        self.line.send(("done", live.pacing))

    def _ask(self, live: Live) -> None:
        """Seats the users of this process's devices; a cloud has none."""
        users = Users(self.part.queries, self.cast.devices)
        live.on_end(partial(users.hear, post=live.post))
        live.on_end(lambda session, _: self.line.send(("ended", session)))
        users.ask(live.post)

    async def _hear(self, word: str) -> Any:
        """The next thing that the parent says, which must be that word."""
        said, value = await asyncio.to_thread(self.line.recv)
        if said != word:
            raise RuntimeError(f"the parent said {said!r} where {word!r} was due")
        return value
