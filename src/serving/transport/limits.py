"""How much a host takes from another, and how long it waits for it."""

from dataclasses import dataclass, fields
from math import isfinite

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Raises ValueError for a limit that leaves no room."""

    message_nbytes: int = 16 * MIB
    """One message on the wire, its tensors included."""
    outbox_messages: int = 4096
    """Messages that may wait for one slow host; one more resets its stream."""
    outbox_nbytes: int = 64 * MIB
    tensors_nbytes: int = 64 * MIB
    """Tensors of one remote host in the store; beyond it that host's oldest go."""
    max_tokens: int = 1 << 17
    """Tokens of one session."""
    sessions_per_node: int = 64
    """Sessions that one remote node may have open; beyond it its oldest is released."""
    nodes_per_host: int = 1024
    """Nodes on one host."""
    hosts: int = 1024
    """Hosts that may be connected at once."""
    handshake_timeout_s: float = 5.0
    """A stream that has not said who it is by then is closed."""
    connect_timeout_s: float = 5.0
    """An attempt to connect that has no answer by then has failed."""
    keepalive_s: float = 10.0
    """A silent connection is asked for a sign of life after this long."""
    keepalive_timeout_s: float = 5.0
    """It is dead when the sign does not come in this time."""
    linger_s: float = 60.0
    """How long a lost host's tensors stay, for work that has begun on them."""
    backoff_s: float = 0.2
    """The first wait before connecting again; it doubles with every failure."""
    backoff_max_s: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 and isfinite(value)):
                raise ValueError(f"limits.{field.name}={value} must be more than 0, and finite.")
        for name in ("outbox_nbytes", "tensors_nbytes"):
            if getattr(self, name) < self.message_nbytes:
                raise ValueError(
                    f"limits.{name}={getattr(self, name)} holds less than one message of "
                    f"message_nbytes={self.message_nbytes}; raise the first or lower the second."
                )
        if self.backoff_max_s < self.backoff_s:
            raise ValueError(f"limits: backoff_max_s={self.backoff_max_s} must be at least backoff_s={self.backoff_s}.")

    @property
    def channel_options(self) -> list[tuple[str, int]]:
        """As gRPC channel arguments, for either side. Without a ping timeout of its own, which is a minute, an
        unanswered ping would outlast the keep-alive timeout.
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
        ]
