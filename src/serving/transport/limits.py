"""What a host accepts from another host, how long it waits, and the error that ends a stream."""

from dataclasses import dataclass, fields
from math import isfinite

from serving.messages import Hop

MIB = 1 << 20
REPLACED_CODE = "ABORTED"
"""The status of a stream that a newer one of the same node replaces."""


class ProtocolError(Exception):
    """Ends a stream with a gRPC status; its text is sent to the other side.

    Args:
        code: the name of a gRPC status code.
        text: for people; never holds a token or a key.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def invalid(text: str) -> ProtocolError:
    return ProtocolError("INVALID_ARGUMENT", text)


@dataclass(frozen=True)
class Limits:
    """Raises ValueError for a limit that is not positive or contradicts another."""

    message_nbytes: int = 16 * MIB
    """Size of one message, tensors included."""
    outbox_messages: int = 4096
    """Messages queued for one host; one more resets its stream."""
    outbox_nbytes: int = 64 * MIB
    tensors_nbytes: int = 64 * MIB
    """Memory of one remote host's tensors in the store; above it that host's oldest are discarded."""
    max_tokens: int = 1 << 17
    """Length of one session."""
    sessions_per_node: int = 64
    """Open sessions of one remote node; above it the least recently used one is released."""
    nodes_per_host: int = 1024
    hosts: int = 1024
    """Hosts connected at once."""
    handshake_timeout_s: float = 5.0
    """A stream without a Hello by then is closed."""
    connect_timeout_s: float = 5.0
    """A connection attempt without an answer by then has failed."""
    keepalive_s: float = 10.0
    """Idle time before a ping."""
    keepalive_timeout_s: float = 5.0
    """Time to answer a ping; then the connection is dead."""
    linger_s: float = 60.0
    """How long the tensors of a disconnected host are kept for work in progress."""
    backoff_s: float = 0.2
    """First delay before reconnecting; doubles with every failure."""
    backoff_max_s: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 and isfinite(value)):
                raise ValueError(f"limits.{field.name}={value} must be above 0 and finite.")
        for name in ("outbox_nbytes", "tensors_nbytes"):
            if getattr(self, name) < self.message_nbytes:
                raise ValueError(
                    f"limits.{name}={getattr(self, name)} holds less than one message of "
                    f"message_nbytes={self.message_nbytes}; raise the first or lower the second."
                )
        if self.backoff_max_s < self.backoff_s:
            raise ValueError(f"limits: backoff_max_s={self.backoff_max_s} must be at least backoff_s={self.backoff_s}.")

    @property
    def header_nbytes(self) -> int:
        """Size of a frame's header: a message without its tensors. It bounds what parsing a header can allocate."""
        return (1 << 17) + 12 * self.max_tokens

    @property
    def channel_options(self) -> list[tuple[str, int]]:
        """gRPC channel arguments for both sides. The ping timeout is set because its default, a minute, would exceed
        `keepalive_timeout_s`.
        """
        return [
            ("grpc.max_receive_message_length", self.message_nbytes),
            ("grpc.max_send_message_length", self.message_nbytes),
            ("grpc.keepalive_time_ms", max(1, int(self.keepalive_s * 1e3))),
            ("grpc.keepalive_timeout_ms", max(1, int(self.keepalive_timeout_s * 1e3))),
            ("grpc.http2.ping_timeout_ms", max(1, int(self.keepalive_timeout_s * 1e3))),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", max(1, int(self.keepalive_s * 0.5e3))),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.min_reconnect_backoff_ms", max(1, int(self.connect_timeout_s * 1e3))),  # also the time to connect
            ("grpc.server_handshake_timeout_ms", max(1, int(self.handshake_timeout_s * 1e3))),
            ("grpc.max_concurrent_streams", 4),
            ("grpc.so_reuseport", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),  # a proxy of the environment would read the token of a stream without TLS
        ]


@dataclass(frozen=True)
class PeerExpectations:
    """Facts of the run against which messages are checked; None: unknown, only the general limits apply."""

    vocab_size: int | None = None
    """Token ids are below this."""
    hidden_size: int | None = None
    """Width of hidden states."""
    hops: tuple[Hop, ...] | None = None
    """The only hops that requests may have."""
    trusted_nodes: frozenset[str] = frozenset()
    """Nodes of other tiers, which may send messages about sessions that a device opened.

    Only the token keeps other hosts from using such a name.
    """
