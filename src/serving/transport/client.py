"""The connecting side of a stream: a device, or a node of an earlier tier."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from serving.core.keyed_random import key, uniform
from serving.messages import Message
from serving.transport.connection import FrameReceiver, ReceivedTensors, SessionOwners
from serving.transport.frame import FrameDecoder, Hello
from serving.transport.limits import REPLACED_CODE, Limits, PeerExpectations, ProtocolError
from serving.transport.security import Security
from serving.transport.stream import (
    ADMITTED_METADATA,
    METHOD,
    MessageSender,
    MessageSink,
    Outbox,
    TensorSource,
    goodbye_frame,
    run_stream,
)


class ReconnectBackoff:
    """Exponential back-off with seeded jitter, so that devices do not reconnect all at once after a cloud restarts.

    Args:
        initial_s, max_s: delays before jitter, which takes up to half away.
        stream: from `serving.core.keyed_random.key`.
    """

    def __init__(self, initial_s: float, max_s: float, stream: int) -> None:
        self._initial_s, self._max_s, self._stream = initial_s, max_s, stream
        self._failures = self._attempts = 0

    def next_delay_s(self) -> float:
        wait_s = min(self._max_s, self._initial_s * 2.0 ** min(self._failures, 64))
        self._failures += 1
        self._attempts += 1
        return wait_s * (0.5 + 0.5 * uniform(self._stream, self._attempts, "reconnect"))

    def reset(self) -> None:
        """After a success: the next failure counts as the first."""
        self._failures = 0


log = logging.getLogger(__name__)

PERMANENT_CODES = {"UNAUTHENTICATED", "FAILED_PRECONDITION"}
"""Errors for which a retry cannot help."""

_STREAM_ENDED = (asyncio.InvalidStateError, grpc.aio.AioRpcError)
"""Raised by a write when the call has ended."""


class TransportClient:
    """Keeps one stream to one server, and reconnects until it is stopped. `start` raises an error of the sink or of the
    store in the first attempt; a later one is logged, and ends its stream alone.

    Args:
        nodes: names of the nodes on this host.
        sink: their driver.
        tensor_store: None: tensors do not travel.
        address: `host:port` of the server.
        config_digest: of the run's configuration; a server with another digest refuses.
        expectations: facts of the run, for tighter checks.
        owners: session owners of this host, if it is also a server; the remote host is trusted with all sessions.
        seed: of the jitter between attempts.
    """

    def __init__(
        self,
        nodes: tuple[str, ...],
        sink: MessageSink,
        tensor_store: TensorSource | None,
        address: str,
        security: Security | None = None,
        limits: Limits | None = None,
        *,
        config_digest: str = "",
        expectations: PeerExpectations | None = None,
        owners: SessionOwners | None = None,
        seed: int = 0,
    ) -> None:
        self._sink, self._tensor_store, self._address, self._owners = sink, tensor_store, address, owners
        self._security, self._limits = security or Security(), limits or Limits()
        self._hello = Hello(nodes, config_digest, tensor_store is not None)
        self._decoder = FrameDecoder(self._limits, expectations or PeerExpectations(), tensor_store is not None)
        self._sender = MessageSender(tensor_store, self._limits)
        self._received_tensors = ReceivedTensors(tensor_store, self._limits.tensors_nbytes)
        self._backoff = ReconnectBackoff(self._limits.backoff_s, self._limits.backoff_max_s, key(seed, nodes[0]))
        self._outbox: Outbox | None = None
        self._remote_nodes: tuple[str, ...] = ()
        self._task: asyncio.Task[None] | None = None
        self._attempted, self._stopping = asyncio.Event(), asyncio.Event()
        self.last_error: ProtocolError | None = None
        """Why the last attempt or stream failed; None while connected."""
        self._fault = ""
        """What ended the last stream and may end the next one, too: an error of this process, or another host of the
        same name.
        """

    async def start(self) -> None:
        """Makes the first attempt. An unreachable server is no error: attempts go on in the background.

        Raises ProtocolError if a retry cannot help (wrong token, version or configuration), ValueError for a token
        without TLS beyond this machine or for missing files.
        """
        self._security.check_token_is_protected(self._address, self._security.ca_certificate is not None)
        self._security.channel_credentials()
        self._task = asyncio.create_task(self._reconnect_loop(), name=f"transport client of {self._address}")
        await self._attempted.wait()
        if self._task.done():
            await self._task  # sink or store raised
        if self.last_error and self.last_error.code in PERMANENT_CODES:
            await self.stop(0.0)
            raise self.last_error

    async def stop(self, grace_s: float = 5.0) -> None:
        """Sends what is queued and closes, at the latest after `grace_s`."""
        self._stopping.set()
        if self._outbox:
            self._outbox.close(goodbye_frame(f"{self._hello.nodes[0]} stops"))
            if self._task:
                await asyncio.wait((self._task,), timeout=grace_s)
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._received_tensors.discard()
        if self._task and not self._task.cancelled() and (error := self._task.exception()):
            raise error

    def send(self, sender: str, to: str, message: Message) -> None:
        """Never blocks; drops the message while its node is not connected. Raises as `MessageSender.send`."""
        self._sender.send(self._outbox if to in self._remote_nodes else None, sender, to, message)

    async def _reconnect_loop(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    await self._attempt()
                    self._fault = ""
                except grpc.aio.AioRpcError as error:
                    self._record_error(ProtocolError(error.code().name, error.details() or "no reason given"))
                except ProtocolError as error:
                    self._record_error(error)
                except Exception as error:
                    if not self._attempted.is_set():
                        raise
                    self._record_fault(error)
                self._attempted.set()
                await self._wait_backoff()
        finally:
            self._attempted.set()

    async def _wait_backoff(self) -> None:
        try:
            async with asyncio.timeout(self._backoff.next_delay_s()):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _record_error(self, error: ProtocolError) -> None:
        """Logs once per kind of error, not once per attempt, and not the one that `start` raises."""
        ends = error.code in PERMANENT_CODES and not self._attempted.is_set()
        fault = error.text if error.code == REPLACED_CODE else ""
        said = fault == self._fault if fault else self.last_error is not None and self.last_error.code == error.code
        if not ends and not said:
            log.warning("%s: %s (%s); trying again", self._address, error.text, error.code)
        self.last_error, self._fault = error, fault

    def _record_fault(self, error: Exception) -> None:
        """An error of this process. Logs it once while it ends each stream in turn."""
        if repr(error) != self._fault:
            log.error("%s: an error here ended the stream; trying again", self._address, exc_info=error)
        self._fault = repr(error)
        self.last_error = ProtocolError("INTERNAL", self._fault)

    async def _attempt(self) -> None:
        """Runs one stream, from connecting to its end."""
        async with self._channel() as channel:
            call = channel.stream_stream(METHOD)(metadata=self._security.metadata)
            try:
                await self._run_connected(call, await self._handshake(call))
            finally:
                call.cancel()

    def _channel(self) -> Any:
        options = self._limits.channel_options
        try:
            credentials = self._security.channel_credentials()
        except ValueError as problem:  # a file that is exchanged just now; `start` has read it once
            raise ProtocolError("UNAVAILABLE", str(problem)) from None
        if credentials:
            return grpc.aio.secure_channel(self._address, credentials, options)
        return grpc.aio.insecure_channel(self._address, options)

    async def _handshake(self, call: Any) -> Hello:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                # A write after the server ended the stream would hide its status: grpc issue 36066
                if ADMITTED_METADATA[0] in await call.initial_metadata():
                    with suppress(*_STREAM_ENDED):
                        await call.write(self._hello.encoded)
                data = await call.read()
        except TimeoutError:
            raise ProtocolError(
                "DEADLINE_EXCEEDED", f"no answer in limits.connect_timeout_s={limits.connect_timeout_s:g} s."
            ) from None
        return self._hello.check_peer(data if isinstance(data, bytes) else b"", limits)

    async def _run_connected(self, call: Any, hello: Hello) -> None:
        self._outbox, self._remote_nodes, self.last_error = Outbox(self._limits), hello.nodes, None
        if self._stopping.is_set():
            self._outbox.close(goodbye_frame("stops"))
        if not self._fault:  # else it may end this stream, too, and the delay has to grow
            self._backoff.reset()
        receiver = FrameReceiver(
            self._sink,
            self._decoder,
            self._received_tensors,
            self._hello.nodes,
            hello.nodes,
            self._owners,
            trusted=True,
            send=self.send,
        )

        async def finish_writing() -> None:
            await call.done_writing()
            await asyncio.Event().wait()  # the other side ends the stream when it has read all

        try:
            self._sink.peers_restored(hello.nodes)
            self._attempted.set()
            await run_stream(call.read, lambda data: _write(call, data), self._outbox, receiver.receive, finish_writing)
        finally:
            self._outbox, self._remote_nodes = None, ()
            self._sink.peers_lost(hello.nodes)


async def _write(call: Any, data: bytes) -> None:
    try:
        await call.write(data)
    except _STREAM_ENDED:
        await asyncio.Event().wait()  # the call has ended: reading from it raises the reason
