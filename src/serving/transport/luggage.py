"""The tensors that one remote host has in this host's store."""

from typing import TYPE_CHECKING

from serving.messages import Blob
from serving.transport import tandem_pb2 as pb
from serving.transport import tensors
from serving.transport.ears import Blobs
from serving.transport.errors import invalid

if TYPE_CHECKING:
    import torch


class Luggage:
    """Bounded: beyond its share, a host's own oldest tensors go, so that one host cannot push out another's."""

    def __init__(self, blobs: Blobs | None, capacity_nbytes: int) -> None:
        self._blobs, self._capacity_nbytes = blobs, capacity_nbytes
        self._held: dict[str, tuple[Blob, int]] = {}
        self._nbytes = 0

    def add(self, carried: list[tuple[Blob, pb.Tensor]]) -> None:
        """Raises RefusedError for a tensor that cannot be; then none of them is kept."""
        if self._blobs is None:
            return
        for blob, tensor in [(blob, _open(blob, wire)) for blob, wire in carried]:
            _, old = self._held.pop(blob.id, (blob, 0))
            self._held[blob.id] = blob, tensor.nbytes
            self._nbytes += tensor.nbytes - old
            self._blobs.add(blob, tensor)
        while self._nbytes > self._capacity_nbytes:
            self._forget(next(iter(self._held)))

    def discard(self) -> None:
        """The host is gone for good."""
        for name in list(self._held):
            self._forget(name)

    def _forget(self, name: str) -> None:
        blob, nbytes = self._held.pop(name)
        self._nbytes -= nbytes
        if self._blobs is not None:
            self._blobs.discard((blob,))


def _open(blob: Blob, wire: pb.Tensor) -> "torch.Tensor":
    tensor = tensors.unpack(blob.id, wire)
    if tensor.dim() == 1 and not (bool((tensor >= 0).all()) and float(tensor.double().sum()) > 0):
        raise invalid(f"{blob.id}: a distribution must be of shares from 0, one of them above it.")
    return tensor
