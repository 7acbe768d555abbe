"""The frames between two hosts: a Hello, then Envelopes, then a Goodbye.

A frame is the length of its header (4 bytes, little endian), the header (MessagePack, as `serving.core.codec` lays it
out), and the values of the tensors that the header lists, in its order. docs/transport.md describes it for other
languages.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib import metadata
from typing import TypeAlias

import msgpack

from serving.core.codec import Bound, Bounds, Codec, MalformedError, bounded_codec
from serving.messages import LoadReport, Message, Request, SequenceSlice, TensorRef, message
from serving.transport import tensors
from serving.transport.bounds import MAX_INT32, NAME, message_bounds
from serving.transport.limits import Limits, PeerExpectations, ProtocolError, invalid
from serving.transport.tensors import PackedTensor, TensorHeader

PROTOCOL = 7
"""Raised by every change of what travels; hosts of different protocols refuse each other."""
_LENGTH_NBYTES = 4

ReceivedTensor: TypeAlias = tuple[TensorRef, PackedTensor]


def _version() -> str:
    try:
        return metadata.version("tandem-llm")
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Hello:
    """The first frame of a host: names its nodes, and says which run it belongs to.

    Raises ValueError for no nodes or a duplicate name.
    """

    nodes: tuple[str, ...]
    config_digest: str = ""
    """Digest of the run's configuration; hosts with different digests refuse each other."""
    sends_tensors: bool = False
    """True if tensor data travels with each `TensorRef`."""
    boot_id: str = field(default_factory=lambda: secrets.token_hex(8))
    """New at each start of the process."""
    protocol: int = field(default_factory=lambda: PROTOCOL)  # a plain default would be left out of the frame
    version: str = field(default_factory=_version)

    def __post_init__(self) -> None:
        if not self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise ValueError(f"transport: a host needs at least one node, all with different names; got {self.nodes}.")

    @property
    def encoded(self) -> bytes:
        return encode_frame(self)

    @property
    def summary(self) -> str:
        tensors = "with tensors" if self.sends_tensors else "without tensors"
        return (
            f"protocol {self.protocol}, tandem-llm {self.version}, configuration {self.config_digest or '-'}, {tensors}"
        )

    def check_peer(self, data: bytes, limits: Limits) -> "Hello":
        """Decodes the other side's first frame.

        Raises ProtocolError: INVALID_ARGUMENT for a frame that is no Hello, FAILED_PRECONDITION for a host of another
        run.
        """
        other = FrameDecoder(limits, PeerExpectations(), False).decode(data)[0] if data else None
        if not isinstance(other, Hello):
            raise invalid("hello: the first frame of a stream must be a Hello.")
        if (self.protocol, self.version, self.config_digest, self.sends_tensors) != (
            other.protocol, other.version, other.config_digest, other.sends_tensors,
        ):  # fmt: skip
            raise ProtocolError(
                "FAILED_PRECONDITION",
                f"hosts of different runs: {self.nodes[0]} has {self.summary}; {other.nodes[0]} has "
                f"{other.summary}. Start both from the same configuration and the same version.",
            )
        both = set(self.nodes) & set(other.nodes)
        if both:
            raise invalid(f"Hello.nodes: both sides have a node {min(both)}.")
        return other


@message
class Goodbye:
    """The last frame of a host."""

    reason: str


@message
class Envelope:
    """One message between two nodes."""

    sender: str
    to: str
    message: Message
    tensors: tuple[TensorHeader, ...] = ()
    """Of a request: its hidden states, then its draft probabilities. Empty if tensors do not travel."""


Frame: TypeAlias = Hello | Envelope | Goodbye


def encode_message(sender: str, to: str, sent: Message, packed: Sequence[PackedTensor] = ()) -> bytes:
    """Returns a frame with one message and its tensors. Raises ValueError for a number that cannot travel."""
    return encode_frame(Envelope(sender, to, sent, tuple([each.header for each in packed])), packed)


def encode_frame(frame: Frame, packed: Sequence[PackedTensor] = ()) -> bytes:
    header = msgpack.packb(_encode(frame))
    return b"".join((len(header).to_bytes(_LENGTH_NBYTES, "little"), header, *(each.data for each in packed)))


class FrameDecoder:
    """Decodes and checks the frames of one remote host.

    Args:
        with_tensors: True if both hosts said in their Hello that tensors travel.
    """

    def __init__(self, limits: Limits, expectations: PeerExpectations, with_tensors: bool) -> None:
        self._limits, self._expectations, self._with_tensors = limits, expectations, with_tensors
        self._decode = _codec(limits, expectations).decode
        most = max(limits.max_tokens, limits.nodes_per_host)
        self._unpack = partial(
            msgpack.unpackb, use_list=False, max_array_len=most, max_str_len=1024, max_map_len=0, max_bin_len=0,
            max_ext_len=0,
        )  # fmt: skip

    def decode(self, data: bytes) -> tuple[Frame, list[ReceivedTensor]]:
        """Returns the frame and the tensors that came with it, still packed.

        Tensors get ids `@sender/...`, so that no host can name another host's tensor. Raises ProtocolError
        (INVALID_ARGUMENT) naming the field.
        """
        end = _LENGTH_NBYTES + int.from_bytes(data[:_LENGTH_NBYTES], "little")
        if not _LENGTH_NBYTES <= end <= len(data) or end > self._limits.header_nbytes:
            raise invalid(f"frame: {len(data)} bytes are no Frame: their header would end at {end}.")
        try:
            frame: Frame = self._decode(self._unpack(data[_LENGTH_NBYTES:end]))
        except MalformedError as error:
            raise invalid(str(error) if error.path else f"frame: {error}") from None
        except ValueError:
            raise invalid(f"frame: {len(data)} bytes are no Frame: their header is no MessagePack.") from None
        if isinstance(frame, Envelope) and (frame.tensors or isinstance(frame.message, Request)):
            return self._receive_tensors(frame, memoryview(data)[end:])
        if end < len(data):
            raise invalid(f"frame: {len(data) - end} bytes follow its header.")
        return frame, []

    def _receive_tensors(self, envelope: Envelope, data: memoryview) -> tuple[Frame, list[ReceivedTensor]]:
        request = envelope.message
        refs = _tensor_refs(request.slice) if isinstance(request, Request) else []
        if len(envelope.tensors) != (len(refs) if self._with_tensors else 0):
            must = "must" if self._with_tensors else "must not"
            raise invalid(
                f"Envelope.tensors: {len(envelope.tensors)} for {len(refs)} references in slice.hidden_states and "
                f"slice.draft_probs; tensors {must} travel, as both hosts' Hello said."
            )
        packed = tensors.split(envelope.tensors, data)
        if not refs or not isinstance(request, Request):
            return envelope, []
        self._check_tensors(request, packed)
        own = [TensorRef(f"@{envelope.sender}/{ref.id}", ref.nbytes) for ref in refs]
        received = list(zip(own, packed, strict=True)) if packed else []
        return replace(envelope, message=replace(request, slice=_with_refs(request.slice, own))), received

    def _check_tensors(self, request: Request, packed: list[PackedTensor]) -> None:
        probs = packed
        if packed and request.slice.hidden_states:
            hop = request.hops[request.hop_index]
            tensors.check_hidden_states(packed[0], request.slice, hop, self._expectations.hidden_size)
            probs = packed[1:]
        for each in probs:
            tensors.check_draft_probs("slice.draft_probs", each, self._expectations)


def _tensor_refs(seq: SequenceSlice) -> list[TensorRef]:
    """A slice's tensors in the order in which they travel."""
    return [*([seq.hidden_states] if seq.hidden_states else []), *seq.distinct_draft_probs]


def _with_refs(seq: SequenceSlice, refs: list[TensorRef]) -> SequenceSlice:
    hidden, probs = (refs[0], refs[1:]) if seq.hidden_states else (None, refs)
    named = {old.id: new for old, new in zip(seq.distinct_draft_probs, probs, strict=True)}
    return replace(seq, hidden_states=hidden, draft_probs=tuple(named[ref.id] for ref in seq.draft_probs))


@lru_cache(maxsize=16)
def _codec(limits: Limits, expectations: PeerExpectations) -> Codec:
    bounds = message_bounds(limits, expectations)
    fields = {
        Hello: {
            "nodes": Bound(pattern=NAME, min_len=1, max_len=limits.nodes_per_host),
            "config_digest": Bound(pattern=r"[A-Za-z0-9._:/-]{0,128}"),
            "version": Bound(pattern=r"[A-Za-z0-9._+-]{1,64}"),
        },
        Goodbye: {"reason": Bound(pattern=r"[ -~]{0,200}")},
        TensorHeader: {"shape": Bound(1, MAX_INT32, min_len=1, max_len=4)},
        Envelope: {"tensors": Bound(max_len=1 + limits.max_tokens)},
    }
    checks = {**bounds.checks, Envelope: _check_envelope}
    return bounded_codec(Frame, Bounds(bounds.defaults, {**bounds.fields, **fields}, checks))


def _check_envelope(envelope: Envelope) -> None:
    sent = envelope.message
    if isinstance(sent, Request) and (node := sent.path[sent.hop_index]) != envelope.to:
        what = f"hop {sent.hop_index} is {node!r}, but the message is for {envelope.to!r}"
        raise MalformedError(what, "message.Request.path")
    if isinstance(sent, LoadReport) and sent.node != envelope.sender:
        raise MalformedError("a node may only report its own load", "message.LoadReport.node")


_encode = _codec(Limits(max_tokens=MAX_INT32), PeerExpectations()).encode  # of its limits, the widest hold here
