"""The side that dials: a device.

How long to wait before connecting again.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from serving.core.keyed_random import key, luck
from serving.messages import Message
from serving.transport.connection import Luggage, Reception
from serving.transport.decode import Decoder
from serving.transport.errors import RefusedError
from serving.transport.handshake import Hello
from serving.transport.limits import Limits
from serving.transport.security import Security
from serving.transport.session_ownership import Known, Owners
from serving.transport.stream import ADMITTED, METHOD, Blobs, Ears, Outbox, Sender, converse, goodbye


class Backoff:
    """Exponential, with jitter from a seed, so that a fleet whose cloud restarts does not come back in one instant.

    Args:
        first_s, longest_s: the waits before jitter, which takes up to half away.
        stream: from `serving.core.keyed_random.key`.
    """

    def __init__(self, first_s: float, longest_s: float, stream: int) -> None:
        self._first_s, self._longest_s, self._stream = first_s, longest_s, stream
        self._failures = self._attempts = 0

    def next_s(self) -> float:
        wait_s = min(self._longest_s, self._first_s * 2.0 ** min(self._failures, 64))
        self._failures += 1
        self._attempts += 1
        return wait_s * (0.5 + 0.5 * luck(self._stream, self._attempts, "reconnect"))

    def reset(self) -> None:
        """It worked: the next failure is a first one."""
        self._failures = 0


log = logging.getLogger(__name__)

PERMANENT = {"UNAUTHENTICATED", "FAILED_PRECONDITION"}
"""What trying again does not mend."""

_OVER = (asyncio.InvalidStateError, grpc.aio.AioRpcError)
"""What a write raises when the call has ended."""


class Dialler:
    """Keeps one stream to one listening host, and connects again for as long as it runs.

    Args:
        nodes: names of the nodes on this host.
        ears: their driver.
        blobs: the store of tensors; None: tensors do not travel.
        address: `host:port` of the listener.
        digest: of the run's configuration; a listener with another refuses.
        known: what is known of the run, for tighter checks.
        owners: of the sessions on this host, if it also listens; the other side is trusted with all of them.
        seed: of the jitter between attempts.
    """

    def __init__(
        self,
        nodes: tuple[str, ...],
        ears: Ears,
        blobs: Blobs | None,
        address: str,
        security: Security | None = None,
        limits: Limits | None = None,
        *,
        digest: str = "",
        known: Known | None = None,
        owners: Owners | None = None,
        seed: int = 0,
    ) -> None:
        self._ears, self._blobs, self._address, self._owners = ears, blobs, address, owners
        self._security, self._limits = security or Security(), limits or Limits()
        self._hello = Hello(nodes, digest, blobs is not None)
        self._decoder = Decoder(self._limits, known or Known(), blobs is not None)
        self._sender = Sender(blobs, self._limits)
        self._luggage = Luggage(blobs, self._limits.tensors_nbytes)
        self._backoff = Backoff(self._limits.backoff_s, self._limits.backoff_max_s, key(seed, nodes[0]))
        self._outbox: Outbox | None = None
        self._there: tuple[str, ...] = ()
        self._task: asyncio.Task[None] | None = None
        self._tried, self._stopping = asyncio.Event(), asyncio.Event()
        self.trouble: RefusedError | None = None
        """Why the last attempt or stream failed; None while connected. For people, and for a readiness page."""

    async def start(self) -> None:
        """Makes the first attempt. A listener that is not there yet is no error: attempts go on in the background.

        Raises RefusedError where trying again would not help: a wrong token, another version, another configuration;
        ValueError for a token without TLS beyond this machine, or files that are missing.
        """
        self._security.check(self._address, self._security.authority is not None)
        self._security.channel_credentials()
        self._task = asyncio.create_task(self._keep(), name=f"dialler to {self._address}")
        await self._tried.wait()
        if self._task.done():
            await self._task  # ears or store raised
        if self.trouble and self.trouble.code in PERMANENT:
            await self.stop(0.0)
            raise self.trouble

    async def stop(self, grace_s: float = 5.0) -> None:
        """Lets what waits leave and closes; after `grace_s` whatever happens."""
        self._stopping.set()
        if self._outbox:
            self._outbox.close(goodbye(f"{self._hello.nodes[0]} stops"))
            if self._task:
                await asyncio.wait((self._task,), timeout=grace_s)
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._luggage.discard()
        if self._task and not self._task.cancelled() and (error := self._task.exception()):
            raise error

    def send(self, sender: str, to: str, message: Message) -> None:
        """Never blocks; a message is dropped while its node is not connected. Raises as `Sender.send`."""
        self._sender.send(self._outbox if to in self._there else None, sender, to, message)

    async def _keep(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    await self._attempt()
                except grpc.aio.AioRpcError as error:
                    self._note(RefusedError(error.code().name, error.details() or "no reason given"))
                except RefusedError as refused:
                    self._note(refused)
                self._tried.set()
                await self._rest()
        finally:
            self._tried.set()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._backoff.next_s()):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _note(self, trouble: RefusedError) -> None:
        """Once per kind of trouble, not once per attempt."""
        if self.trouble is None or self.trouble.code != trouble.code:
            log.warning("%s: %s (%s); trying again", self._address, trouble.text, trouble.code)
        self.trouble = trouble

    async def _attempt(self) -> None:
        """One stream, from connecting to its end."""
        async with self._channel() as channel:
            call = channel.stream_stream(METHOD)(metadata=self._security.metadata)
            try:
                await self._talk(call, await self._greet(call))
            finally:
                call.cancel()

    def _channel(self) -> Any:
        credentials, options = self._security.channel_credentials(), self._limits.options
        if credentials:
            return grpc.aio.secure_channel(self._address, credentials, options)
        return grpc.aio.insecure_channel(self._address, options)

    async def _greet(self, call: Any) -> Hello:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.connect_s):
                # A write into a refusal would hide its reason: grpc issue 36066
                if ADMITTED[0] in await call.initial_metadata():
                    with suppress(*_OVER):
                        await call.write(self._hello.wire)
                data = await call.read()
        except TimeoutError:
            raise RefusedError("DEADLINE_EXCEEDED", f"no answer in limits.connect_s={limits.connect_s:g} s.") from None
        return self._hello.meet(data if isinstance(data, bytes) else b"", limits)

    async def _talk(self, call: Any, hello: Hello) -> None:
        self._outbox, self._there, self.trouble = Outbox(self._limits), hello.nodes, None
        if self._stopping.is_set():
            self._outbox.close(goodbye("stops"))
        self._backoff.reset()
        reception = Reception(
            self._ears, self._decoder, self._luggage, self._hello.nodes, hello.nodes, self._owners, trusted=True
        )

        async def written() -> None:
            await call.done_writing()
            await asyncio.Event().wait()  # the other side ends the stream when it has read all

        self._ears.joined(hello.nodes)
        self._tried.set()
        try:
            await converse(call.read, lambda data: _write(call, data), self._outbox, reception.hear, written)
        finally:
            self._outbox, self._there = None, ()
            self._ears.lost(hello.nodes)


async def _write(call: Any, data: bytes) -> None:
    try:
        await call.write(data)
    except _OVER:
        await asyncio.Event().wait()  # the call is over: whoever reads it hears why
