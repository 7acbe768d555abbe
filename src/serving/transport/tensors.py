"""Tensors as bytes: type, shape, values in little endian."""

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
"""Of a token that a distribution names: its number, in two bytes or four, and its probability in fp16."""

if sys.byteorder != "little":
    raise ImportError("serving.transport.tensors: tensors travel in little endian; this machine is big endian.")


def pack(tensor: "torch.Tensor") -> pb.Tensor:
    """Any shape of up to four dimensions. Raises TypeError for a type that does not travel."""
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    name = next((short for short, long in DTYPE_NAMES.items() if long == kind), None)
    if name is None:
        raise TypeError(f"a tensor of {kind} cannot travel; convert it to one of {', '.join(DTYPE_NAMES.values())}")
    data = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return pb.Tensor(dtype=name, shape=tensor.shape, data=data)


def unpack(field: str, wire: pb.Tensor) -> "torch.Tensor":
    """Raises ProtocolError when type, shape and bytes do not fit together, or a value is not finite."""
    import torch

    name, shape = check(field, wire)
    tensor = torch.frombuffer(bytearray(wire.data), dtype=getattr(torch, DTYPE_NAMES[name])).reshape(shape)
    if name != "int8" and not bool(tensor.isfinite().all()):
        raise invalid(f"{field}: a value is infinite or not a number.")
    return tensor


def check(field: str, wire: pb.Tensor) -> tuple[str, tuple[int, ...]]:
    """Type and shape, which the bytes fit."""
    name = errors.one_of(f"{field}.dtype", wire.dtype, DTYPE_NAMES)
    errors.length(f"{field}.shape", wire.shape, 1, MAX_DIMENSIONS)
    shape = errors.integers(f"{field}.shape", wire.shape, 1, errors.MAX_INT32)
    nbytes = prod(shape) * ITEM_NBYTES[name]
    if len(wire.data) != nbytes:
        raise invalid(f"{field}.data: {len(wire.data)} bytes, but {list(shape)} of {name} are {nbytes}")
    return name, shape


def check_sparse_probs(field: str, wire: pb.Tensor, vocab_size: int | None) -> None:
    """Of a distribution that names tokens, as `serving.engines.torch.sampling.encode_probs` packs it: int8 of shape
    (tokens, 4 or 6), their numbers ascending and below the vocabulary, their probabilities finite, from 0, one of them
    above it.

    Raises ProtocolError when it does not fit `check`, or is none.
    """
    import numpy as np

    name, shape = check(field, wire)
    errors.one_of(f"{field}: type of what names tokens", name, ("int8",))
    errors.within(f"{field}: dimensions", len(shape), 2, 2)
    if shape[1] not in SPARSE_ENTRY_NBYTES:
        raise invalid(f"{field}: {shape[1]} bytes a token, must be one of {', '.join(map(str, SPARSE_ENTRY_NBYTES))}")
    most = errors.MAX_INT32 if vocab_size is None else vocab_size - 1
    errors.within(f"{field}: tokens", shape[0], 1, most + 1)
    entries = np.frombuffer(wire.data, [("token", f"<u{shape[1] - 2}"), ("probability", "<f2")])
    tokens, odds = entries["token"], entries["probability"]
    errors.integers(f"{field}: tokens", (int(tokens[0]), int(tokens.max())), 0, most)
    if not bool((tokens[1:] > tokens[:-1]).all()):
        raise invalid(f"{field}: tokens must be named once each, in ascending order.")
    if not bool(np.isfinite(odds).all() and (odds >= 0).all() and (odds > 0).any()):
        raise invalid(f"{field}: a distribution must be of finite shares from 0, one of them above it.")


def check_int8_hidden(field: str, wire: pb.Tensor) -> None:
    """Of hidden states in int8, as `serving.engines.torch.forward.encode_hidden` packs them: each row ends with its
    fp32 scale, which is finite and not below 0.

    Raises ProtocolError when it does not fit `check`, or is none.
    """
    import numpy as np

    _, (rows, width) = check(field, wire)
    if width <= SCALE_NBYTES:
        raise invalid(f"{field}: rows of {width} bytes leave nothing beside a scale of {SCALE_NBYTES}")
    scales = np.frombuffer(wire.data, np.uint8).reshape(rows, width)[:, -SCALE_NBYTES:].copy().view("<f4")
    if not bool(np.isfinite(scales).all() and (scales >= 0).all()):
        raise invalid(f"{field}: a row's scale must be a finite number from 0.")
