"""Packs tensors as bytes (type, shape, little-endian values), and unpacks and checks received ones.

The checks raise ProtocolError (INVALID_ARGUMENT) that names the field.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, TypeAlias

from serving.hardware.payload_size import HIDDEN_DTYPES, SCALE_NBYTES
from serving.messages import Hop, SequenceSlice
from serving.transport.bounds import MAX_INT32
from serving.transport.limits import PeerExpectations, invalid

if TYPE_CHECKING:
    import torch

DtypeName: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
DTYPE_NAMES: dict[DtypeName, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
ITEM_NBYTES: dict[DtypeName, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
SPARSE_ENTRY_NBYTES = (4, 6)
"""Bytes per token of a sparse distribution: token id (2 or 4) and fp16 probability (2)."""

if sys.byteorder != "little":
    raise ImportError("serving.transport.tensors: tensors travel in little endian; this machine is big endian.")


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Type and shape of a tensor whose values follow in the frame."""

    dtype: DtypeName
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_NBYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor as it travels; `data` may be a view of a frame or of the tensor itself."""

    header: TensorHeader
    data: bytes | memoryview


def pack(tensor: "torch.Tensor") -> PackedTensor:
    """Packs a tensor of up to four dimensions, without a copy if it is contiguous in main memory.

    Raises TypeError for an unsupported dtype.
    """
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    name = next((short for short, long in DTYPE_NAMES.items() if long == kind), None)
    if name is None:
        raise TypeError(f"a tensor of {kind} cannot travel; convert it to one of {', '.join(DTYPE_NAMES.values())}")
    values = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
    return PackedTensor(TensorHeader(name, tuple(tensor.shape)), values.data)


def unpack(field: str, packed: PackedTensor) -> "torch.Tensor":
    """Copies the values into a tensor of its own. Raises ProtocolError if one is not finite."""
    import torch

    name, shape = packed.header.dtype, packed.header.shape
    tensor = torch.frombuffer(bytearray(packed.data), dtype=getattr(torch, DTYPE_NAMES[name])).reshape(shape)
    if name != "int8" and not bool(tensor.isfinite().all()):
        raise invalid(f"{field}: a value is infinite or not a number.")
    return tensor


def split(headers: Iterable[TensorHeader], data: memoryview) -> list[PackedTensor]:
    """Assigns the bytes behind a frame's header to its tensors. Raises ProtocolError if they do not fit."""
    found, begin = [], 0
    for i, header in enumerate(headers):
        values = data[begin : begin + header.nbytes]
        if len(values) < header.nbytes:
            raise invalid(
                f"Envelope.tensors[{i}]: {len(values)} bytes, but {list(header.shape)} of {header.dtype} are "
                f"{header.nbytes}"
            )
        found.append(PackedTensor(header, values))
        begin += header.nbytes
    if begin < len(data):
        raise invalid(f"frame: {len(data) - begin} bytes follow its {len(found)} tensors.")
    return found


def check_hidden_states(packed: PackedTensor, seq: SequenceSlice, hop: Hop, hidden_size: int | None) -> None:
    """Checks type and shape of a slice's hidden states, and the scales of int8 ones."""
    field, dtype, shape = "slice.hidden_states", packed.header.dtype, packed.header.shape
    if dtype not in HIDDEN_DTYPES or len(shape) != 2:
        raise invalid(f"{field}: {dtype} of {len(shape)} dimensions, must be two of {', '.join(HIDDEN_DTYPES)}")
    least = seq.num_tokens if hop.span.start_layer < hop.span.end_layer else 1
    if not least <= shape[0] <= seq.num_tokens:
        raise invalid(f"{field}: {shape[0]} rows, must be {least} to {seq.num_tokens}")
    scale_nbytes = SCALE_NBYTES if dtype == "int8" else 0
    if hidden_size is not None and shape[1] != hidden_size + scale_nbytes:
        raise invalid(f"{field}: width {shape[1]}, must be {hidden_size + scale_nbytes}")
    if scale_nbytes:
        check_int8_hidden(field, packed)


def check_int8_hidden(field: str, packed: PackedTensor) -> None:
    """Checks int8 hidden states as `serving.engines.torch.forward.encode_hidden` packs them.

    Each row ends with its fp32 scale, which is finite and 0 or more.
    """
    import numpy as np

    rows, width = packed.header.shape
    if width <= SCALE_NBYTES:
        raise invalid(f"{field}: rows of {width} bytes hold no more than their scale of {SCALE_NBYTES}")
    scales = np.frombuffer(packed.data, np.uint8).reshape(rows, width)[:, -SCALE_NBYTES:].copy().view("<f4")
    if not bool(np.isfinite(scales).all() and (scales >= 0).all()):
        raise invalid(f"{field}: a row's scale must be a finite number from 0.")


def check_draft_probs(field: str, packed: PackedTensor, expectations: PeerExpectations) -> None:
    """Checks a sparse distribution (int8) in full, a dense one in shape; `ReceivedTensors` checks its values."""
    if packed.header.dtype == "int8":
        check_sparse_probs(field, packed, expectations.vocab_size)
        return
    shape, most = packed.header.shape, expectations.vocab_size or MAX_INT32
    if len(shape) != 1:
        raise invalid(f"{field}: {len(shape)} dimensions, must be 1")
    if shape[0] > most:
        raise invalid(f"{field}: tokens: {shape[0]}, must be at most {most}")


def check_sparse_probs(field: str, packed: PackedTensor, vocab_size: int | None) -> None:
    """Checks a sparse distribution as `serving.engines.torch.sampling.encode_probs` packs it.

    It is int8 of shape (tokens, 4 or 6): token ids ascend and are below the vocabulary size; probabilities are finite
    and 0 or more, at least one above 0.
    """
    import numpy as np

    shape = packed.header.shape
    if len(shape) != 2:
        raise invalid(f"{field}: {len(shape)} dimensions, must be 2")
    if shape[1] not in SPARSE_ENTRY_NBYTES:
        raise invalid(f"{field}: {shape[1]} bytes a token, must be one of {', '.join(map(str, SPARSE_ENTRY_NBYTES))}")
    most = MAX_INT32 if vocab_size is None else vocab_size - 1
    if shape[0] > most + 1:
        raise invalid(f"{field}: tokens: {shape[0]}, must be at most {most + 1}")
    entries = np.frombuffer(packed.data, [("token", f"<u{shape[1] - 2}"), ("probability", "<f2")])
    tokens, probs = entries["token"], entries["probability"]
    if tokens.max() > most:
        raise invalid(f"{field}: tokens: values {tokens[0]} to {tokens.max()} must be 0 to {most}")
    if not bool((tokens[1:] > tokens[:-1]).all()):
        raise invalid(f"{field}: token ids must be in ascending order, each once.")
    if not bool(np.isfinite(probs).all() and (probs >= 0).all() and (probs > 0).any()):
        raise invalid(f"{field}: probabilities must be finite and 0 or more, at least one above 0.")
