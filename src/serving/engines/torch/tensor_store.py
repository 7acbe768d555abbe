"""Tensors that engines of one process exchange by id: hidden states and draft distributions."""

from collections.abc import Iterable

import torch

from serving.messages import TensorRef

_OVERHEAD_NBYTES = 1536
"""Memory of a tensor beside its values: the objects, and its id in the tables of the store and of a transport."""


class TensorStore:
    """A bounded store; when it is full, it removes the oldest tensors.

    Args:
        capacity_nbytes: memory limit of all tensors together.
    """

    def __init__(self, capacity_nbytes: int = 1 << 28) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.held_nbytes = 0
        self._tensors: dict[str, torch.Tensor] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._tensors)

    def put(self, tensor: torch.Tensor, owner: str, nbytes: int) -> TensorRef:
        """Stores a tensor under a new id; `nbytes` is its size on a link."""
        self._serial += 1
        ref = TensorRef(f"{owner}/{self._serial}", nbytes)
        self.add(ref, tensor)
        return ref

    def add(self, ref: TensorRef, tensor: torch.Tensor) -> int:
        """Stores a tensor under an id that another process gave it; returns the memory that it takes, in bytes."""
        self.discard((ref,))
        self._tensors[ref.id] = tensor
        self.held_nbytes += _memory_nbytes(tensor)
        while self.held_nbytes > self.capacity_nbytes and len(self._tensors) > 1:
            self._remove(next(iter(self._tensors)))
        return _memory_nbytes(tensor)

    def holds(self, ref: TensorRef) -> bool:
        return ref.id in self._tensors

    def get(self, ref: TensorRef) -> torch.Tensor:
        """Reads a tensor and keeps it. Raises KeyError if it was taken or removed."""
        try:
            return self._tensors[ref.id]
        except KeyError:
            raise KeyError(
                f"tensor {ref.id!r} is not in the store: it was taken already, never arrived, or fell out of the "
                f"{self.capacity_nbytes} bytes that the store may hold"
            ) from None

    def take(self, ref: TensorRef) -> torch.Tensor:
        """Reads and removes a tensor. Raises KeyError as `get` does."""
        tensor = self.get(ref)
        self._remove(ref.id)
        return tensor

    def discard(self, refs: Iterable[TensorRef]) -> None:
        """Removes tensors; ids that are not in the store are ignored."""
        for ref in refs:
            if ref.id in self._tensors:
                self._remove(ref.id)

    def discard_owner(self, owner: str, received_only: bool = False) -> None:
        """Removes the tensors of `owner`: those received from other processes, and those made here unless
        `received_only`.
        """
        received, own = f"/{owner}/", f"{owner}/"
        for name in list(self._tensors):
            if received in name or (name.startswith(own) and not received_only):
                self._remove(name)

    def _remove(self, name: str) -> None:
        self.held_nbytes -= _memory_nbytes(self._tensors.pop(name))


def _memory_nbytes(tensor: torch.Tensor) -> int:
    return tensor.nbytes + _OVERHEAD_NBYTES
