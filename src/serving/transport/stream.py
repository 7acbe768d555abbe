"""Messages that wait for one host to take them; bounded, because a host may be slow or dead.

A stream in use, the same from either end.

From a message to the bytes in an outbox.

What a transport needs from its host: someone who listens, and the store of tensors.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import grpc.aio

from serving.messages import Message, Request, TensorRef
from serving.transport import encode, tensors
from serving.transport.encode import encode_frame
from serving.transport.errors import ProtocolError
from serving.transport.limits import Limits
from serving.transport.tandem_pb2 import Frame, Goodbye

if TYPE_CHECKING:
    import torch


class Outbox:
    """First in, first out: one side puts without waiting, the stream takes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue: deque[bytes] = deque()
        self._nbytes = 0
        self._closed = False
        self._fault: ProtocolError | None = None
        self._changed = asyncio.Event()
        self._broken = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Never blocks: what is one too many breaks the stream, what comes after its end is dropped."""
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
        """What waits is still sent, then `last_frame`, then nothing."""
        if not self._closed:
            self._queue.append(last_frame)
            self._nbytes += len(last_frame)
            self._closed = True
            self._changed.set()

    def reset(self, fault: ProtocolError) -> None:
        """Breaks the stream: what waits is dropped."""
        self._queue.clear()
        self._nbytes = 0
        self._fault = self._fault or fault
        self._broken.set()

    async def fault(self) -> None:
        """Waits for a reset, and raises its reason."""
        await self._broken.wait()
        if self._fault:
            raise self._fault

    async def take(self) -> bytes | None:
        """The next of what is put, in order; None when the outbox was closed and is empty."""
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
"""Metadata with which a server says that the token is right, before anything is written."""


async def run_stream(
    read: Callable[[], Awaitable[object]],
    write: Callable[[bytes], Awaitable[None]],
    outbox: Outbox,
    receive: Callable[[bytes], Awaitable[None]],
    finish_writing: Callable[[], Awaitable[None]],
) -> None:
    """Hears and says until the other side ends or the outbox is closed and empty.

    Args:
        written: called when all is said; this side is over when it returns.

    Raises ProtocolError from `receive` or from the outbox, and whatever gRPC raises when the connection breaks.
    """

    async def listen() -> None:
        while isinstance(data := await read(), bytes):
            await receive(data)

    async def say() -> None:
        while (data := await outbox.take()) is not None:
            await write(data)
        await finish_writing()

    tasks = [asyncio.ensure_future(each) for each in (listen(), say(), outbox.fault())]
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
    return encode_frame(Frame(goodbye=Goodbye(reason=reason)))


class MessageSink(Protocol):
    """The driver of a host's nodes; all of it is called on the event loop."""

    async def receive(self, sender: str, to: str, message: Message) -> None:
        """A message that passed all checks. Nothing more is read from that host until this returns: back-pressure.
        It is cancelled when the stream breaks meanwhile.
        """
        ...

    def peers_lost(self, nodes: tuple[str, ...]) -> None:
        """These remote nodes cannot be reached any more; what was sent to them may never arrive."""
        ...

    def peers_restored(self, nodes: tuple[str, ...]) -> None:
        """These remote nodes can be reached, for the first time or again."""
        ...


class TensorSource(Protocol):
    """`serving.engines.torch.tensor_store.TensorStore`, as far as a transport uses it."""

    def add(self, ref: TensorRef, tensor: "torch.Tensor") -> None: ...

    def get(self, ref: TensorRef) -> "torch.Tensor": ...

    def take(self, ref: TensorRef) -> "torch.Tensor": ...

    def discard(self, refs: Iterable[TensorRef]) -> None: ...


class MessageSender:
    """
    Args:
        blobs: where tensors are; None: they stay here, only their ids travel.
    """

    def __init__(self, tensor_store: TensorSource | None, limits: Limits) -> None:
        self._tensor_store, self._limits = tensor_store, limits
        self._packers = _packers(tensor_store) if tensor_store is not None else None

    def send(self, outbox: Outbox | None, sender: str, to: str, message: Message) -> None:
        """Drops the message, and hidden states that only it needed, where nobody takes it (None).

        Raises KeyError for a tensor that is not in the store, ValueError for a message above the limit.
        """
        if outbox is None:
            self._drop(message)
            return
        data = encode.encode_message(sender, to, message, self._packers)
        if len(data) > self._limits.message_nbytes:
            raise ValueError(
                f"a message of {len(data)} bytes to {to} is above limits.message_nbytes="
                f"{self._limits.message_nbytes}; raise it on both sides, or prefill in parts (policy/prefill=chunked)."
            )
        outbox.put(data)

    def _drop(self, message: Message) -> None:
        if self._tensor_store is not None and isinstance(message, Request) and message.slice.hidden_states:
            self._tensor_store.discard((message.slice.hidden_states,))


def _packers(tensor_store: TensorSource) -> tuple[encode.TensorPacker, encode.TensorPacker]:
    """Hidden states are asked for once; a draft's distribution again, when the question is asked again."""
    return lambda blob: tensors.pack(tensor_store.take(blob)), lambda blob: tensors.pack(tensor_store.get(blob))
