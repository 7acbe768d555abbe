"""The side that listens: a cloud."""

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio

from serving.messages import Message
from serving.transport.connection import Desk, Guest, Luggage, Reception
from serving.transport.decode import Decoder
from serving.transport.errors import RefusedError
from serving.transport.handshake import Hello
from serving.transport.limits import Limits
from serving.transport.security import Security, is_loopback
from serving.transport.session_ownership import Known, Owners
from serving.transport.stream import ADMITTED, METHOD, Blobs, Ears, Outbox, Sender, converse, goodbye, status

log = logging.getLogger(__name__)


class Listener:
    """Serves every host that dials, each on its own stream; what one does wrong ends that one's stream only.

    Args:
        nodes: names of the nodes on this host.
        ears: their driver.
        blobs: the store of tensors; None: tensors do not travel.
        address: `host:port`, port 0 for any that is free. Loopback, unless told otherwise.
        digest: of the run's configuration; hosts with another are refused.
        known: what is known of the run, for tighter checks.
    """

    def __init__(
        self,
        nodes: tuple[str, ...],
        ears: Ears,
        blobs: Blobs | None = None,
        address: str = "127.0.0.1:0",
        security: Security | None = None,
        limits: Limits | None = None,
        *,
        digest: str = "",
        known: Known | None = None,
    ) -> None:
        self._ears, self._blobs, self._address = ears, blobs, address
        self._security, self._limits = security or Security(), limits or Limits()
        self._known = known or Known()
        self._hello = Hello(nodes, digest, blobs is not None)
        self._sender, self._desk = Sender(blobs, self._limits), Desk(self._limits)
        self._server: grpc.aio.Server | None = None
        self._stopping = False
        self._gone: dict[Guest, asyncio.TimerHandle] = {}
        """Lost hosts whose tensors linger."""

    async def start(self) -> str:
        """Listens; returns the address that it got. Raises ValueError for a token without TLS beyond this machine, or
        files that are missing; RuntimeError when the address is taken.
        """
        credentials = self._security.server_credentials()
        self._security.check(self._address, credentials is not None)
        if not (self._security.token or is_loopback(self._address)):
            log.warning("%s is open to whoever reaches it: %s is not set", self._address, self._security.token_env)
        self._server = grpc.aio.server(options=self._limits.options, maximum_concurrent_rpcs=2 * self._limits.hosts)
        handler = grpc.stream_stream_rpc_method_handler(self._talk)
        service, _, method = METHOD.strip("/").partition("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        add = self._server.add_insecure_port
        port = self._server.add_secure_port(self._address, credentials) if credentials else add(self._address)
        await self._server.start()
        return self._address if self._address.startswith("unix:") else f"{self._address.rpartition(':')[0]}:{port}"

    async def stop(self, grace_s: float = 5.0) -> None:
        """Takes no new host, says goodbye, lets what waits leave, then closes; after `grace_s` whatever happens."""
        self._stopping = True
        for guest in self._desk.guests:
            guest.outbox.close(self._farewell)
        if self._server:
            await self._server.stop(grace_s)
        for guest in list(self._gone):
            self._forget(guest)

    def send(self, sender: str, to: str, message: Message) -> None:
        """Never blocks; a message for a node that is not connected is dropped. Raises as `Sender.send`."""
        guest = self._desk.find(to)
        self._sender.send(guest.outbox if guest else None, sender, to, message)

    @property
    def owners(self) -> Owners:
        """Whose session is whose, also of what comes by way of nodes that this host dials."""
        return self._desk.owners

    @property
    def _farewell(self) -> bytes:
        return goodbye(f"{self._hello.nodes[0]} stops")

    async def _talk(self, _: Any, context: Any) -> None:
        """One host's stream, from its Hello to its end."""
        try:
            self._security.admit(context.invocation_metadata())
            if self._stopping:
                raise RefusedError("UNAVAILABLE", f"{self._hello.nodes[0]} stops.")
            await context.send_initial_metadata((ADMITTED,))
            guest = await self._meet(context)
            try:
                await self._greet(context)
                await self._serve(guest, context)
            finally:
                self._part(guest)
        except RefusedError as refused:
            log.warning("stream from %s ends: %s", context.peer(), refused.text)
            await context.abort(status(refused.code), refused.text)

    async def _meet(self, context: Any) -> Guest:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.hello_s):
                data = await context.read()
        except TimeoutError:
            raise RefusedError("DEADLINE_EXCEEDED", f"no Hello within limits.hello_s={limits.hello_s:g} s.") from None
        hello = self._hello.meet(data if isinstance(data, bytes) else b"", limits)
        guest = Guest(hello, _place(context), Outbox(limits), Luggage(self._blobs, limits.tensors_nbytes))
        self._enter(guest)  # before our Hello leaves: who has read it may be written to
        return guest

    async def _greet(self, context: Any) -> None:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.hello_s):
                await context.write(self._hello.wire)
        except TimeoutError:
            text = f"our Hello did not leave within limits.hello_s={limits.hello_s:g} s."
            raise RefusedError("DEADLINE_EXCEEDED", text) from None

    def _enter(self, guest: Guest) -> None:
        for rival in self._desk.rivals(guest, bool(self._security.token)):
            rival.outbox.reset(RefusedError("ABORTED", f"a newer stream of {guest.hello.nodes[0]} replaces this one."))
            self._part(rival)
        for gone in [each for each in self._gone if guest.restarts(each)]:
            self._forget(gone)  # its tensors' names come again
        self._desk.enter(guest)
        if self._stopping:
            guest.outbox.close(self._farewell)
        self._ears.joined(guest.hello.nodes)

    async def _serve(self, guest: Guest, context: Any) -> None:
        nodes = guest.hello.nodes
        reception = Reception(
            self._ears, Decoder(self._limits, self._known, self._hello.tensors), guest.luggage, self._hello.nodes,
            nodes, self._desk.owners, self._known.peers.issuperset(nodes),
        )  # fmt: skip
        await converse(context.read, context.write, guest.outbox, reception.hear, _nothing_more)

    def _part(self, guest: Guest) -> None:
        if not self._desk.leave(guest):
            return
        loop = asyncio.get_running_loop()
        self._gone[guest] = loop.call_later(self._limits.linger_s, self._forget, guest)
        self._ears.lost(guest.hello.nodes)

    def _forget(self, guest: Guest) -> None:
        self._gone.pop(guest).cancel()
        guest.luggage.discard()


def _place(context: Any) -> str:
    """The peer's address without its port."""
    return str(context.peer()).rpartition(":")[0]


async def _nothing_more() -> None:
    """A server's stream is over when its handler returns."""
