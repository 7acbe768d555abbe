"""The listening side of streams: a cloud, or a node of a tier."""

import asyncio
import logging
import socket
from typing import Any

import grpc
import grpc.aio

from serving.messages import Message
from serving.transport.connection import Connection, ConnectionTable, FrameReceiver, ReceivedTensors, SessionOwners
from serving.transport.frame import FrameDecoder, Hello
from serving.transport.limits import REPLACED_CODE, Limits, PeerExpectations, ProtocolError
from serving.transport.security import Security, is_loopback
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
    """Serves every host that connects, each on its own stream; an error of one host ends only its own stream.

    Args:
        nodes: names of the nodes on this host.
        sink: their driver.
        tensor_store: None: tensors do not travel.
        address: `host:port`, port 0 for any free port.
        config_digest: of the run's configuration; hosts with another digest are refused.
        expectations: facts of the run, for tighter checks.
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
        """Disconnected hosts whose tensors are kept, with the timer that discards them."""

    async def start(self) -> str:
        """Listens and returns the address.

        Raises ValueError for a token without TLS beyond this machine or for missing files, RuntimeError if the address
        is taken.
        """
        credentials = self._security.server_credentials()
        self._security.check_token_is_protected(self._address, credentials is not None)
        if not (self._security.token or is_loopback(self._address)):
            log.warning("%s accepts any client: %s is not set", self._address, self._security.token_env)
        _check_free(self._address)
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
        """Refuses new hosts, sends what is queued and a Goodbye, and closes, at the latest after `grace_s`."""
        self._stopping = True
        for connection in self._connections.connections:
            connection.outbox.close(self._goodbye_frame)
        if self._server:
            await self._server.stop(grace_s)
        for connection in list(self._connections.connections):  # gRPC may end their handlers after its `stop`
            self._remove_connection(connection)
        for connection in list(self._lingering):
            self._discard_tensors(connection)

    def send(self, sender: str, to: str, message: Message) -> None:
        """Never blocks; drops the message if its node is not connected. Raises as `MessageSender.send`."""
        connection = self._connections.find(to)
        self._sender.send(connection.outbox if connection else None, sender, to, message)

    @property
    def owners(self) -> SessionOwners:
        """Owners of all sessions on this host, also of those that arrive over this host's own `TransportClient`s."""
        return self._connections.owners

    @property
    def _goodbye_frame(self) -> bytes:
        return goodbye_frame(f"{self._hello.nodes[0]} stops")

    async def _handle_stream(self, _: Any, context: Any) -> None:
        """Handles one host's stream, from its Hello to its end."""
        try:
            self._security.authenticate(context.invocation_metadata())
            if self._stopping:
                raise ProtocolError("UNAVAILABLE", f"{self._hello.nodes[0]} stops.")
            await context.send_initial_metadata((ADMITTED_METADATA,))
            connection = await self._accept(context)
            try:
                await self._send_hello(context)
                await self._serve(connection, context)
            finally:
                self._remove_connection(connection)
        except ProtocolError as error:
            log.warning("stream from %s ends: %s", context.peer(), error.text)
            await context.abort(status_code(error.code), error.text)

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
        connection = Connection(
            hello, _peer_host(context), Outbox(limits), ReceivedTensors(self._tensor_store, limits.tensors_nbytes)
        )
        self._add_connection(connection)  # before our Hello is sent: the host may send once it has it
        return connection

    async def _send_hello(self, context: Any) -> None:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.handshake_timeout_s):
                await context.write(self._hello.encoded)
        except TimeoutError:
            text = f"our Hello did not leave within limits.handshake_timeout_s={limits.handshake_timeout_s:g} s."
            raise ProtocolError("DEADLINE_EXCEEDED", text) from None

    def _add_connection(self, connection: Connection) -> None:
        for older in self._connections.replaced_by(connection, bool(self._security.token)):
            older.outbox.reset(_replaced(connection.hello.nodes[0]))
            self._remove_connection(older)
        for older in [each for each in self._lingering if connection.is_restart_of(each)]:
            self._discard_tensors(older)  # the restarted host uses the same tensor ids again
        self._connections.add(connection)
        if self._stopping:
            connection.outbox.close(self._goodbye_frame)
        self._sink.peers_restored(connection.hello.nodes)

    async def _serve(self, connection: Connection, context: Any) -> None:
        nodes = connection.hello.nodes
        receiver = FrameReceiver(
            self._sink,
            FrameDecoder(self._limits, self._expectations, self._hello.sends_tensors),
            connection.received_tensors,
            self._hello.nodes,
            nodes,
            self._connections.owners,
            self._expectations.trusted_nodes.issuperset(nodes),
            self.send,
        )
        await run_stream(context.read, context.write, connection.outbox, receiver.receive, _finish_writing)

    def _remove_connection(self, connection: Connection) -> None:
        if not self._connections.remove(connection):
            return
        loop = asyncio.get_running_loop()
        self._lingering[connection] = loop.call_later(self._limits.linger_s, self._discard_tensors, connection)
        self._sink.peers_lost(connection.hello.nodes)

    def _discard_tensors(self, connection: Connection) -> None:
        self._lingering.pop(connection).cancel()
        connection.received_tensors.discard()


def _replaced(node: str) -> ProtocolError:
    return ProtocolError(
        REPLACED_CODE,
        f"a newer stream of {node} replaces this one. If another process has that name, give each a number of its own "
        "(service.device=N, service.node=NAME).",
    )


def _peer_host(context: Any) -> str:
    """The peer's address without its port."""
    return str(context.peer()).rpartition(":")[0]


async def _finish_writing() -> None:
    """Nothing to do: a server's stream ends when its handler returns."""


def _check_free(address: str) -> None:
    """Raises RuntimeError if the address is taken, or unknown: gRPC would write a line of its own to standard error."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or port == "0":
        return
    try:
        places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except socket.gaierror as problem:
        raise RuntimeError(f"{address}: {problem.strerror}") from problem
    for family, kind, protocol, _, place in places:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as problem:
                raise RuntimeError(f"{address}: {problem.strerror}") from problem
