"""Who a host is, and whether two hosts belong to one run."""

import secrets
from dataclasses import dataclass, field
from importlib import metadata

from serving.transport import errors
from serving.transport.encode import encode_frame
from serving.transport.errors import ProtocolError
from serving.transport.limits import Limits
from serving.transport.tandem_pb2 import Frame
from serving.transport.tandem_pb2 import Hello as Wire

PROTOCOL = 4


def _version() -> str:
    try:
        return metadata.version("tandem-llm")
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Hello:
    """The first thing a host says.

    Raises ValueError for nodes without names, or twice the same.
    """

    nodes: tuple[str, ...]
    config_digest: str = ""
    """Of the run's configuration: hosts of different runs do not talk."""
    sends_tensors: bool = False
    """Do tensors travel with their blobs?"""
    boot_id: str = field(default_factory=lambda: secrets.token_hex(8))
    """New whenever the process starts again."""
    protocol: int = PROTOCOL
    version: str = field(default_factory=_version)

    def __post_init__(self) -> None:
        if not self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise ValueError(f"transport: a host has nodes with different names, at least one; got {self.nodes}.")

    @property
    def encoded(self) -> bytes:
        wire = Wire(
            protocol=self.protocol, version=self.version, nodes=self.nodes, digest=self.config_digest, tensors=self.sends_tensors,
            boot=self.boot_id,
        )  # fmt: skip
        return encode_frame(Frame(hello=wire))

    @property
    def summary(self) -> str:
        tensors = "with tensors" if self.sends_tensors else "without tensors"
        return (
            f"protocol {self.protocol}, tandem-llm {self.version}, configuration {self.config_digest or '-'}, {tensors}"
        )

    def check_peer(self, data: bytes, limits: Limits) -> "Hello":
        """Reads the other side's first frame.

        Raises RefusedError: INVALID_ARGUMENT for what is no Hello, FAILED_PRECONDITION for a host of another run.
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
            raise ProtocolError("INVALID_ARGUMENT", f"hello.nodes: both sides say that {min(both)} lives there.")
        return other


def _decode(wire: Wire, limits: Limits) -> Hello:
    errors.length("hello.nodes", wire.nodes, 1, limits.nodes_per_host)
    nodes = tuple(errors.name("hello.nodes", node) for node in wire.nodes)
    if len(set(nodes)) < len(nodes):
        raise ProtocolError("INVALID_ARGUMENT", "hello.nodes: a node is named twice.")
    digest = errors.name("hello.digest", wire.digest, 128) if wire.digest else ""
    boot = errors.name("hello.boot", wire.boot)
    return Hello(nodes, digest, wire.tensors, boot, wire.protocol, errors.version("hello.version", wire.version))
