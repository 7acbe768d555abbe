"""The side that listens: a cloud."""

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio

from serving.messages import Message
from serving.transport.connection import Connection, ConnectionTable, FrameReceiver, ReceivedTensors
from serving.transport.decode import MessageDecoder
from serving.transport.errors import ProtocolError
from serving.transport.handshake import Hello
from serving.transport.limits import Limits
from serving.transport.security import Security, is_loopback
from serving.transport.session_ownership import PeerExpectations, SessionOwners
from serving.transport.stream import (
    ADMITTED_METADATA,
    METHOD,
    MessageSender,
    MessageSink,
    Outbox,
    TensorSource,
    goodbye_frame,
    run_stream,
    status_code,
)

log = logging.getLogger(__name__)


class TransportServer:
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
        sink: MessageSink,
        tensor_store: TensorSource | None = None,
        address: str = "127.0.0.1:0",
        security: Security | None = None,
        limits: Limits | None = None,
        *,
        config_digest: str = "",
        expectations: PeerExpectations | None = None,
    ) -> None:
        self._sink, self._tensor_store, self._address = sink, tensor_store, address
        self._security, self._limits = security or Security(), limits or Limits()
        self._expectations = expectations or PeerExpectations()
        self._hello = Hello(nodes, config_digest, tensor_store is not None)
        self._sender, self._connections = MessageSender(tensor_store, self._limits), ConnectionTable(self._limits)
        self._server: grpc.aio.Server | None = None
        self._stopping = False
        self._lingering: dict[Connection, asyncio.TimerHandle] = {}
        """Lost hosts whose tensors linger."""

    async def start(self) -> str:
        """Listens; returns the address that it got. Raises ValueError for a token without TLS beyond this machine, or
        files that are missing; RuntimeError when the address is taken.
        """
        credentials = self._security.server_credentials()
        self._security.check_token_is_protected(self._address, credentials is not None)
        if not (self._security.token or is_loopback(self._address)):
            log.warning("%s is open to whoever reaches it: %s is not set", self._address, self._security.token_env)
        self._server = grpc.aio.server(
            options=self._limits.channel_options, maximum_concurrent_rpcs=2 * self._limits.hosts
        )
        handler = grpc.stream_stream_rpc_method_handler(self._handle_stream)
        service, _, method = METHOD.strip("/").partition("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        add = self._server.add_insecure_port
        port = self._server.add_secure_port(self._address, credentials) if credentials else add(self._address)
        await self._server.start()
        return self._address if self._address.startswith("unix:") else f"{self._address.rpartition(':')[0]}:{port}"

    async def stop(self, grace_s: float = 5.0) -> None:
        """Takes no new host, says goodbye, lets what waits leave, then closes; after `grace_s` whatever happens."""
        self._stopping = True
        for guest in self._connections.connections:
            guest.outbox.close(self._goodbye_frame)
        if self._server:
            await self._server.stop(grace_s)
        for guest in list(self._lingering):
            self._discard_tensors(guest)

    def send(self, sender: str, to: str, message: Message) -> None:
        """Never blocks; a message for a node that is not connected is dropped. Raises as `MessageSender.send`."""
        guest = self._connections.find(to)
        self._sender.send(guest.outbox if guest else None, sender, to, message)

    @property
    def owners(self) -> SessionOwners:
        """Whose session is whose, also of what comes by way of nodes that this host dials."""
        return self._connections.owners

    @property
    def _goodbye_frame(self) -> bytes:
        return goodbye_frame(f"{self._hello.nodes[0]} stops")

    async def _handle_stream(self, _: Any, context: Any) -> None:
        """One host's stream, from its Hello to its end."""
        try:
            self._security.authenticate(context.invocation_metadata())
            if self._stopping:
                raise ProtocolError("UNAVAILABLE", f"{self._hello.nodes[0]} stops.")
            await context.send_initial_metadata((ADMITTED_METADATA,))
            guest = await self._accept(context)
            try:
                await self._send_hello(context)
                await self._serve(guest, context)
            finally:
                self._remove_connection(guest)
        except ProtocolError as refused:
            log.warning("stream from %s ends: %s", context.peer(), refused.text)
            await context.abort(status_code(refused.code), refused.text)

    async def _accept(self, context: Any) -> Connection:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.handshake_timeout_s):
                data = await context.read()
        except TimeoutError:
            raise ProtocolError(
                "DEADLINE_EXCEEDED", f"no Hello within limits.handshake_timeout_s={limits.handshake_timeout_s:g} s."
            ) from None
        hello = self._hello.check_peer(data if isinstance(data, bytes) else b"", limits)
        guest = Connection(
            hello, _peer_host(context), Outbox(limits), ReceivedTensors(self._tensor_store, limits.tensors_nbytes)
        )
        self._add_connection(guest)  # before our Hello leaves: who has read it may be written to
        return guest

    async def _send_hello(self, context: Any) -> None:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.handshake_timeout_s):
                await context.write(self._hello.encoded)
        except TimeoutError:
            text = f"our Hello did not leave within limits.handshake_timeout_s={limits.handshake_timeout_s:g} s."
            raise ProtocolError("DEADLINE_EXCEEDED", text) from None

    def _add_connection(self, connection: Connection) -> None:
        for rival in self._connections.replaced_by(connection, bool(self._security.token)):
            rival.outbox.reset(
                ProtocolError("ABORTED", f"a newer stream of {connection.hello.nodes[0]} replaces this one.")
            )
            self._remove_connection(rival)
        for gone in [each for each in self._lingering if connection.is_restart_of(each)]:
            self._discard_tensors(gone)  # its tensors' names come again
        self._connections.add(connection)
        if self._stopping:
            connection.outbox.close(self._goodbye_frame)
        self._sink.peers_restored(connection.hello.nodes)

    async def _serve(self, connection: Connection, context: Any) -> None:
        nodes = connection.hello.nodes
        reception = FrameReceiver(
            self._sink, MessageDecoder(self._limits, self._expectations, self._hello.sends_tensors), connection.received_tensors, self._hello.nodes,
            nodes, self._connections.owners, self._expectations.trusted_nodes.issuperset(nodes),
        )  # fmt: skip
        await run_stream(context.read, context.write, connection.outbox, reception.receive, _finish_writing)

    def _remove_connection(self, connection: Connection) -> None:
        if not self._connections.remove(connection):
            return
        loop = asyncio.get_running_loop()
        self._lingering[connection] = loop.call_later(self._limits.linger_s, self._discard_tensors, connection)
        self._sink.peers_lost(connection.hello.nodes)

    def _discard_tensors(self, connection: Connection) -> None:
        self._lingering.pop(connection).cancel()
        connection.received_tensors.discard()


def _peer_host(context: Any) -> str:
    """The peer's address without its port."""
    return str(context.peer()).rpartition(":")[0]


async def _finish_writing() -> None:
    """A server's stream is over when its handler returns."""
