"""Tensors as bytes: type, shape, values in little endian."""

import sys
from math import prod
from typing import TYPE_CHECKING

from serving.transport import checks
from serving.transport import tandem_pb2 as pb
from serving.transport.refused import invalid

if TYPE_CHECKING:
    import torch

NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
ITEM_NBYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
MAX_DIMENSIONS = 4

if sys.byteorder != "little":
    raise ImportError("serving.transport.tensors: tensors travel in little endian; this machine is big endian.")


def pack(tensor: "torch.Tensor") -> pb.Tensor:
    """Any shape of up to four dimensions. Raises TypeError for a type that does not travel."""
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    name = next((short for short, long in NAMES.items() if long == kind), None)
    if name is None:
        raise TypeError(f"a tensor of {kind} cannot travel; convert it to one of {', '.join(NAMES.values())}")
    data = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return pb.Tensor(dtype=name, shape=tensor.shape, data=data)


def unpack(field: str, wire: pb.Tensor) -> "torch.Tensor":
    """Raises RefusedError when type, shape and bytes do not fit together, or a value is not finite."""
    import torch

    name, shape = check(field, wire)
    tensor = torch.frombuffer(bytearray(wire.data), dtype=getattr(torch, NAMES[name])).reshape(shape)
    if name != "int8" and not bool(tensor.isfinite().all()):
        raise invalid(f"{field}: a value is infinite or not a number.")
    return tensor


def check(field: str, wire: pb.Tensor) -> tuple[str, tuple[int, ...]]:
    """Type and shape, which the bytes fit."""
    name = checks.one_of(f"{field}.dtype", wire.dtype, NAMES)
    checks.length(f"{field}.shape", wire.shape, 1, MAX_DIMENSIONS)
    shape = checks.integers(f"{field}.shape", wire.shape, 1, checks.MAX_TOKEN)
    nbytes = prod(shape) * ITEM_NBYTES[name]
    if len(wire.data) != nbytes:
        raise invalid(f"{field}.data: {len(wire.data)} bytes, but {list(shape)} of {name} are {nbytes}")
    return name, shape
