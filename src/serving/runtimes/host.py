"""A process that holds nodes: a live driver, and transports to the processes that hold the others."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from serving.deployment.topology import Cast
from serving.drivers.real_time import Live
from serving.messages import Joined, Lost, Message, Miss, Request
from serving.transport.limits import Limits
from serving.transport.security import Security
from serving.transport.session_ownership import Known

if TYPE_CHECKING:
    from serving.engines.torch.tensor_store import Blobs
    from serving.transport.session_ownership import Owners

log = logging.getLogger(__name__)


class Transport(Protocol):
    """A dialler or a listener, as far as a host uses it."""

    def send(self, sender: str, to: str, message: Message) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class Host:
    """The nodes `names` of a cast; remote ones are lost until their transport has said otherwise.

    Until `play` gives it a driver it only keeps account of who can be reached. With a `vocabulary` token ids beyond it
    are refused on arrival.
    """

    def __init__(
        self,
        cast: Cast,
        names: Sequence[str],
        blobs: "Blobs | None",
        security: Security,
        limits: Limits,
        digest: str,
        vocabulary: int | None = None,
    ) -> None:
        self.cast, self.names = cast, tuple(names)
        self._blobs, self._security, self._limits, self._digest = blobs, security, limits, digest
        peers = frozenset(cast.workers) if cast.setup.hardware.tiers else frozenset[str]()
        self._known = Known(vocabulary, route=cast.hops or None, peers=peers)
        self._owners: Owners | None = None
        """Of the sessions here, once it listens."""
        self._transports: list[Transport] = []
        self._carriers: dict[str, Transport] = {}
        self._live: Live | None = None
        self._playing = asyncio.Event()
        self.reachable: set[str] = set()
        self._changed = asyncio.Event()

    # Towards others.

    async def listen(self, address: str) -> str:
        """Where others may dial this host: every device, and the nodes of tiers behind its own."""
        from serving.transport.server import Listener

        listener = Listener(
            self.names, self, self._blobs, address, security=self._security, limits=self._limits, digest=self._digest,
            known=self._known,
        )  # fmt: skip
        self._transports.append(listener)
        self._owners = listener.owners
        self._carriers |= dict.fromkeys((*self.cast.devices, *self.cast.behind(self.names[0])), listener)
        return await listener.start()

    async def dial(self, addresses: Mapping[str, str]) -> None:
        """Reaches out to remote nodes, again and again; `addresses` says where each of them is.

        Raises ValueError where one refuses this host, which trying again would not mend.
        """
        from serving.transport.client import Dialler
        from serving.transport.errors import RefusedError

        for address in dict.fromkeys(addresses.values()):
            dialler = Dialler(
                self.names, self, self._blobs, address, security=self._security, limits=self._limits,
                digest=self._digest, known=self._known, owners=self._owners,
            )  # fmt: skip
            self._transports.append(dialler)
            there = [node for node, where in addresses.items() if where == address]
            self._carriers |= dict.fromkeys(there, dialler)
            try:
                await dialler.start()
            except RefusedError as refused:
                raise ValueError(f"{' and '.join(there)} at {address} refuses {self.names[0]}: {refused}") from refused

    async def reached(self, nodes: Iterable[str], within_s: float | None = None) -> None:
        """Returns once all of `nodes` can be reached; raises ConnectionError when some cannot in that time, if there is
        one.
        """
        wanted = frozenset(nodes)
        try:
            async with asyncio.timeout(within_s):
                while not wanted <= self.reachable:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            left = ", ".join(sorted(wanted - self.reachable))
            raise ConnectionError(f"{left} cannot be reached, after {within_s} s of trying") from None

    def play(self, live: Live) -> None:
        """From here on the driver hears what arrives."""
        self._live = live
        for node, transport in self._carriers.items():
            live.carry(node, partial(self._carry, transport))
        self._playing.set()
        self._say(Lost(node) for node in self._carriers if node not in self.reachable)

    def _carry(self, transport: Transport, sender: str, to: str, message: Message) -> None:
        """What cannot travel costs an attempt, not the driver: whoever asked hears that it missed."""
        try:
            transport.send(sender, to, message)
        except (KeyError, ValueError) as problem:
            log.warning("from %s to %s: %s", sender, to, problem)
            if isinstance(message, Request):
                self._missed(sender, message)

    def _missed(self, sender: str, asked: Request) -> None:
        assert self._live
        miss = Miss(asked.rows.session, asked.round, sender)
        if asked.reply_to in self.names:
            self._live.heard(asked.reply_to, miss)
        elif carrier := self._carriers.get(asked.reply_to):
            carrier.send(sender, asked.reply_to, miss)

    async def close(self, grace_s: float = 1.0) -> None:
        await asyncio.gather(*(transport.stop(grace_s) for transport in self._transports))

    # What transports say: `serving.transport.stream.Ears`.

    async def heard(self, sender: str, to: str, message: Message) -> None:
        """What comes before `play` waits for it, and holds up its stream; strangers are not heard."""
        await self._playing.wait()
        if self._live and sender in self._carriers:
            await self._live.room()
            self._live.heard(to, message)

    def lost(self, nodes: tuple[str, ...]) -> None:
        known = self._carriers.keys() & nodes
        self.reachable.difference_update(known)
        self._say(Lost(node) for node in nodes if node in known)

    def joined(self, nodes: tuple[str, ...]) -> None:
        known = self._carriers.keys() & nodes
        self.reachable.update(known)
        self._say(Joined(node) for node in nodes if node in known)

    def _say(self, events: Iterable[Lost | Joined]) -> None:
        self._changed.set()
        if live := self._live:
            for event in events:
                for name in self.names:
                    live.post(live.now(), name, event)
