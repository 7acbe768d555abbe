"""One open stream, used alike by client and server: its outbox, its read and write loop, and how messages are sent."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import grpc.aio

from serving.messages import Message, Request, TensorRef
from serving.transport import tensors
from serving.transport.frame import Goodbye, encode_frame, encode_message
from serving.transport.limits import Limits, ProtocolError
from serving.transport.tensors import PackedTensor

if TYPE_CHECKING:
    import torch


class Outbox:
    """Bounded FIFO queue of frames for one host: `put` never waits, the stream takes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue: deque[bytes] = deque()
        self._nbytes = 0
        self._closed = False
        self._fault: ProtocolError | None = None
        self._changed = asyncio.Event()
        self._broken = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Never blocks. Above the limits it resets the stream; after `close` or `reset` it drops the frame."""
        if self._closed or self._fault:
            return
        limits = self._limits
        if len(self._queue) >= limits.outbox_messages or self._nbytes + len(data) > limits.outbox_nbytes:
            self.reset(
                ProtocolError(
                    "RESOURCE_EXHAUSTED",
                    f"the other side is too slow: {len(self._queue)} messages of {self._nbytes} bytes wait for it "
                    f"(limits.outbox_messages={limits.outbox_messages}, outbox_nbytes={limits.outbox_nbytes}).",
                )
            )
            return
        self._queue.append(data)
        self._nbytes += len(data)
        self._changed.set()

    def close(self, last_frame: bytes) -> None:
        """Sends what is queued, then `last_frame`, then nothing more."""
        if not self._closed:
            self._queue.append(last_frame)
            self._nbytes += len(last_frame)
            self._closed = True
            self._changed.set()

    def reset(self, fault: ProtocolError) -> None:
        """Ends the stream with `fault` and drops what is queued."""
        self._queue.clear()
        self._nbytes = 0
        self._fault = self._fault or fault
        self._broken.set()

    async def fault(self) -> None:
        """Waits for a reset and raises its fault."""
        await self._broken.wait()
        if self._fault:
            raise self._fault

    async def take(self) -> bytes | None:
        """Waits for the next frame; None once the outbox is closed and empty."""
        while not self._queue:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        data = self._queue.popleft()
        self._nbytes -= len(data)
        return data


METHOD = "/tandem.v1.MessageTransport/Connect"
ADMITTED_METADATA = ("tandem", "v1")
"""Initial metadata that the server sends once it has accepted the token."""


async def run_stream(
    read: Callable[[], Awaitable[object]],
    write: Callable[[bytes], Awaitable[None]],
    outbox: Outbox,
    receive: Callable[[bytes], Awaitable[None]],
    finish_writing: Callable[[], Awaitable[None]],
) -> None:
    """Reads and writes until the other side ends the stream, or the outbox is closed and empty.

    Args:
        finish_writing: called after the last frame; this side ends when it returns.

    Raises ProtocolError from `receive` or from the outbox, and gRPC's errors if the connection breaks.
    """

    async def read_loop() -> None:
        while isinstance(data := await read(), bytes):
            await receive(data)

    async def write_loop() -> None:
        while (data := await outbox.take()) is not None:
            await write(data)
        await finish_writing()

    tasks = [asyncio.ensure_future(each) for each in (read_loop(), write_loop(), outbox.fault())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in reversed([each for each in tasks if each in done]):
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def status_code(code: str) -> grpc.StatusCode:
    return grpc.StatusCode[code]


def goodbye_frame(reason: str) -> bytes:
    return encode_frame(Goodbye(reason))


class MessageSink(Protocol):
    """The driver of a host's nodes. Called on the event loop."""

    async def receive(self, sender: str, to: str, message: Message) -> None:
        """Takes a message that passed all checks.

        Back-pressure: nothing more is read from that host until this returns. Cancelled if the stream breaks.
        """
        ...

    def peers_lost(self, nodes: tuple[str, ...]) -> None:
        """These remote nodes are unreachable; messages sent to them may be lost."""
        ...

    def peers_restored(self, nodes: tuple[str, ...]) -> None:
        """These remote nodes are reachable, for the first time or again."""
        ...


class TensorSource(Protocol):
    """The part of `serving.engines.torch.tensor_store.TensorStore` that a transport uses."""

    def add(self, ref: TensorRef, tensor: "torch.Tensor") -> int: ...

    def holds(self, ref: TensorRef) -> bool: ...

    def get(self, ref: TensorRef) -> "torch.Tensor": ...

    def take(self, ref: TensorRef) -> "torch.Tensor": ...

    def discard(self, refs: Iterable[TensorRef]) -> None: ...


class MessageSender:
    """Encodes messages into outboxes.

    Args:
        tensor_store: source of tensors; None: only tensor ids travel.
    """

    def __init__(self, tensor_store: TensorSource | None, limits: Limits) -> None:
        self._tensor_store, self._limits = tensor_store, limits

    def send(self, outbox: Outbox | None, sender: str, to: str, message: Message) -> None:
        """Without an outbox (None), drops the message and its hidden states.

        Raises KeyError for a tensor that is not in the store, ValueError for a message above the limit.
        """
        if outbox is None:
            self._drop(message)
            return
        data = encode_message(sender, to, message, self._pack(message))
        if len(data) > self._limits.message_nbytes:
            raise ValueError(
                f"a message of {len(data)} bytes to {to} is above limits.message_nbytes="
                f"{self._limits.message_nbytes}; raise it on both sides, or prefill in parts (policy/prefill=chunked)."
            )
        outbox.put(data)

    def _pack(self, message: Message) -> list[PackedTensor]:
        """Hidden states are sent once and removed; a draft's distribution stays, because the request may be resent."""
        store = self._tensor_store
        if store is None or not isinstance(message, Request):
            return []
        hidden, probs = message.slice.hidden_states, message.slice.distinct_draft_probs
        found = [store.take(hidden)] if hidden else []
        return [tensors.pack(tensor) for tensor in (*found, *map(store.get, probs))]

    def _drop(self, message: Message) -> None:
        if self._tensor_store is not None and isinstance(message, Request) and message.slice.hidden_states:
            self._tensor_store.discard((message.slice.hidden_states,))
