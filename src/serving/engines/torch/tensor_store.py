"""Tensors that executors of one process exchange by id: hidden states, and the distributions drafts were drawn from."""

from collections.abc import Iterable

import torch

from serving.messages import TensorRef


class TensorStore:
    """A bounded store; when it is full, the oldest tensors go.

    Args:
        capacity_nbytes: how much memory the tensors may hold together.
    """

    def __init__(self, capacity_nbytes: int = 1 << 28) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.held_nbytes = 0
        self._tensors: dict[str, torch.Tensor] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._tensors)

    def put(self, tensor: torch.Tensor, owner: str, nbytes: int) -> TensorRef:
        """Keeps a tensor under a new id of this store; `nbytes` is what it weighs on a link."""
        self._serial += 1
        blob = TensorRef(f"{owner}/{self._serial}", nbytes)
        self.add(blob, tensor)
        return blob

    def add(self, ref: TensorRef, tensor: torch.Tensor) -> None:
        """Keeps a tensor under an id that another process gave it."""
        self.discard((ref,))
        self._tensors[ref.id] = tensor
        self.held_nbytes += tensor.nbytes
        while self.held_nbytes > self.capacity_nbytes and len(self._tensors) > 1:
            self._remove(next(iter(self._tensors)))

    def get(self, ref: TensorRef) -> torch.Tensor:
        """Reads a tensor and keeps it. Raises KeyError when it was taken, or was so old that it had to go."""
        try:
            return self._tensors[ref.id]
        except KeyError:
            raise KeyError(
                f"blob {ref.id!r} is not in the store: it was taken already, never arrived, or fell out of the "
                f"{self.capacity_nbytes} bytes that the store may hold"
            ) from None

    def take(self, ref: TensorRef) -> torch.Tensor:
        """Reads a tensor that nobody else will ask for. Raises KeyError as `get` does."""
        tensor = self.get(ref)
        self._remove(ref.id)
        return tensor

    def discard(self, refs: Iterable[TensorRef]) -> None:
        """Forgets tensors; those that are gone already do not matter."""
        for blob in refs:
            if blob.id in self._tensors:
                self._remove(blob.id)

    def discard_owner(self, owner: str) -> None:
        """Forgets what belongs to `owner`, whoever sent it here."""
        for name in [name for name in self._tensors if f"{owner}/" in name]:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self.held_nbytes -= self._tensors.pop(name).nbytes
