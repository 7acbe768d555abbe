"""What a transport needs from its host: someone who listens, and the store of tensors."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from serving.messages import Blob, Message

if TYPE_CHECKING:
    import torch


class Ears(Protocol):
    """The driver of a host's nodes; all of it is called on the event loop."""

    async def heard(self, sender: str, to: str, message: Message) -> None:
        """A message that passed all checks. Nothing more is read from that host until this returns: back-pressure.
        It is cancelled when the stream breaks meanwhile.
        """
        ...

    def lost(self, nodes: tuple[str, ...]) -> None:
        """These remote nodes cannot be reached any more; what was sent to them may never arrive."""
        ...

    def joined(self, nodes: tuple[str, ...]) -> None:
        """These remote nodes can be reached, for the first time or again."""
        ...


class Blobs(Protocol):
    """`serving.engines.torch.tensor_store.Blobs`, as far as a transport uses it."""

    def add(self, blob: Blob, tensor: "torch.Tensor") -> None: ...

    def get(self, blob: Blob) -> "torch.Tensor": ...

    def take(self, blob: Blob) -> "torch.Tensor": ...

    def discard(self, blobs: Iterable[Blob]) -> None: ...
