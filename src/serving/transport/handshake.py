"""The Hello: names a host's nodes and checks that two hosts belong to one run."""

import secrets
from dataclasses import dataclass, field
from importlib import metadata

from serving.transport import errors
from serving.transport import tandem_pb2 as pb
from serving.transport.encode import encode_frame
from serving.transport.errors import ProtocolError
from serving.transport.limits import Limits

PROTOCOL = 5


def _version() -> str:
    try:
        return metadata.version("tandem-llm")
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Hello:
    """The first frame of a host. Raises ValueError for no nodes or a duplicate name."""

    nodes: tuple[str, ...]
    config_digest: str = ""
    """Digest of the run's configuration; hosts with different digests refuse each other."""
    sends_tensors: bool = False
    """True if tensor data travels with each `TensorRef`."""
    boot_id: str = field(default_factory=lambda: secrets.token_hex(8))
    """New at each start of the process."""
    protocol: int = PROTOCOL
    version: str = field(default_factory=_version)

    def __post_init__(self) -> None:
        if not self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise ValueError(f"transport: a host needs at least one node, all with different names; got {self.nodes}.")

    @property
    def encoded(self) -> bytes:
        wire = pb.Hello(
            protocol=self.protocol,
            version=self.version,
            nodes=self.nodes,
            config_digest=self.config_digest,
            sends_tensors=self.sends_tensors,
            boot_id=self.boot_id,
        )
        return encode_frame(pb.Frame(hello=wire))

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
        first = errors.parse_frame(data)
        if first.WhichOneof("kind") != "hello":
            raise ProtocolError("INVALID_ARGUMENT", "hello: the first frame of a stream must be a Hello.")
        other = _decode(first.hello, limits)
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
            raise ProtocolError("INVALID_ARGUMENT", f"hello.nodes: both sides have a node {min(both)}.")
        return other


def _decode(wire: pb.Hello, limits: Limits) -> Hello:
    errors.length("hello.nodes", wire.nodes, 1, limits.nodes_per_host)
    nodes = tuple(errors.name("hello.nodes", node) for node in wire.nodes)
    if len(set(nodes)) < len(nodes):
        raise ProtocolError("INVALID_ARGUMENT", "hello.nodes: a node is named twice.")
    digest = errors.name("hello.config_digest", wire.config_digest, 128) if wire.config_digest else ""
    boot_id = errors.name("hello.boot_id", wire.boot_id)
    version = errors.version("hello.version", wire.version)
    return Hello(nodes, digest, wire.sends_tensors, boot_id, wire.protocol, version)
