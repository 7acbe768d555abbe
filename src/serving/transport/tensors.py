"""Packs tensors as bytes (type, shape, little-endian values), and unpacks and checks received ones."""

import sys
from math import prod
from typing import TYPE_CHECKING

from serving.hardware.payload_size import SCALE_NBYTES
from serving.transport import errors
from serving.transport import tandem_pb2 as pb
from serving.transport.errors import invalid

if TYPE_CHECKING:
    import torch

DTYPE_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
ITEM_NBYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
MAX_DIMENSIONS = 4
SPARSE_ENTRY_NBYTES = (4, 6)
"""Bytes per token of a sparse distribution: token id (2 or 4) and fp16 probability (2)."""

if sys.byteorder != "little":
    raise ImportError("serving.transport.tensors: tensors travel in little endian; this machine is big endian.")


def pack(tensor: "torch.Tensor") -> pb.Tensor:
    """Packs a tensor of up to four dimensions. Raises TypeError for an unsupported dtype."""
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    name = next((short for short, long in DTYPE_NAMES.items() if long == kind), None)
    if name is None:
        raise TypeError(f"a tensor of {kind} cannot travel; convert it to one of {', '.join(DTYPE_NAMES.values())}")
    data = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return pb.Tensor(dtype=name, shape=tensor.shape, data=data)


def unpack(field: str, wire: pb.Tensor) -> "torch.Tensor":
    """Raises ProtocolError if type, shape and bytes do not agree, or a value is not finite."""
    import torch

    name, shape = check(field, wire)
    tensor = torch.frombuffer(bytearray(wire.data), dtype=getattr(torch, DTYPE_NAMES[name])).reshape(shape)
    if name != "int8" and not bool(tensor.isfinite().all()):
        raise invalid(f"{field}: a value is infinite or not a number.")
    return tensor


def check(field: str, wire: pb.Tensor) -> tuple[str, tuple[int, ...]]:
    """Returns type and shape; raises ProtocolError if the bytes do not fit them."""
    name = errors.one_of(f"{field}.dtype", wire.dtype, DTYPE_NAMES)
    errors.length(f"{field}.shape", wire.shape, 1, MAX_DIMENSIONS)
    shape = errors.integers(f"{field}.shape", wire.shape, 1, errors.MAX_INT32)
    nbytes = prod(shape) * ITEM_NBYTES[name]
    if len(wire.data) != nbytes:
        raise invalid(f"{field}.data: {len(wire.data)} bytes, but {list(shape)} of {name} are {nbytes}")
    return name, shape


def check_sparse_probs(field: str, wire: pb.Tensor, vocab_size: int | None) -> None:
    """Checks a sparse distribution as `serving.engines.torch.sampling.encode_probs` packs it.

    It is int8 of shape (tokens, 4 or 6): token ids ascend and are below the vocabulary size; probabilities are finite
    and 0 or more, at least one above 0. Raises ProtocolError otherwise.
    """
    import numpy as np

    name, shape = check(field, wire)
    errors.one_of(f"{field}: type of a sparse distribution", name, ("int8",))
    errors.within(f"{field}: dimensions", len(shape), 2, 2)
    if shape[1] not in SPARSE_ENTRY_NBYTES:
        raise invalid(f"{field}: {shape[1]} bytes a token, must be one of {', '.join(map(str, SPARSE_ENTRY_NBYTES))}")
    most = errors.MAX_INT32 if vocab_size is None else vocab_size - 1
    errors.within(f"{field}: tokens", shape[0], 1, most + 1)
    entries = np.frombuffer(wire.data, [("token", f"<u{shape[1] - 2}"), ("probability", "<f2")])
    tokens, probs = entries["token"], entries["probability"]
    errors.integers(f"{field}: tokens", (int(tokens[0]), int(tokens.max())), 0, most)
    if not bool((tokens[1:] > tokens[:-1]).all()):
        raise invalid(f"{field}: token ids must be in ascending order, each once.")
    if not bool(np.isfinite(probs).all() and (probs >= 0).all() and (probs > 0).any()):
        raise invalid(f"{field}: probabilities must be finite and 0 or more, at least one above 0.")


def check_int8_hidden(field: str, wire: pb.Tensor) -> None:
    """Checks int8 hidden states as `serving.engines.torch.forward.encode_hidden` packs them.

    Each row ends with its fp32 scale, which is finite and 0 or more. Raises ProtocolError otherwise.
    """
    import numpy as np

    _, (rows, width) = check(field, wire)
    if width <= SCALE_NBYTES:
        raise invalid(f"{field}: rows of {width} bytes hold no more than their scale of {SCALE_NBYTES}")
    scales = np.frombuffer(wire.data, np.uint8).reshape(rows, width)[:, -SCALE_NBYTES:].copy().view("<f4")
    if not bool(np.isfinite(scales).all() and (scales >= 0).all()):
        raise invalid(f"{field}: a row's scale must be a finite number from 0.")
