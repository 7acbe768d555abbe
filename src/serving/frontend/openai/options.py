"""Options of the HTTP servers of this machine, of the OpenAI endpoint, and of the routing API on it."""

from dataclasses import dataclass, field
from typing import ClassVar

from serving.transport.security import is_loopback_host, secret_from_environment


@dataclass(frozen=True)
class HostOptions:
    """The host on which a server listens."""

    host: str = "127.0.0.1"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect."""
        return is_loopback_host(self.host)

    @property
    def url_host(self) -> str:
        """The host as URLs write it."""
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(frozen=True)
class ServerOptions(HostOptions):
    """Where an HTTP server listens, and what it accepts. A key is required if the environment holds one.

    Raises ValueError for a value outside its range.
    """

    port: int = 8000
    """0: any free port."""
    api_key_env: str = "TANDEM_API_KEY"
    """The environment variable that holds the key; unset: no key is required."""
    max_waiting: int = 16
    """Requests that may wait while one is served; more get status 429."""
    retry_after_s: float = 1.0
    max_body_nbytes: int = 1 << 20
    max_connections: int = 128
    body_timeout_s: float = 30.0
    """Time for a request's body to arrive."""
    stall_timeout_s: float = 30.0
    """Time that a client may leave sent data unread before its connection is closed."""
    section: ClassVar[str] = "service.endpoint"
    """The configuration section, for error messages."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError(f"{self.section}.host is empty; 127.0.0.1 is for this machine alone, 0.0.0.0 for all")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"{self.section}.port is {self.port}; it is 0 (any free port) to 65535")
        self._check_minimum(max_waiting=0, max_body_nbytes=1, max_connections=1)
        for name in ("retry_after_s", "body_timeout_s", "stall_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{self.section}.{name} is {getattr(self, name)}; it is a time in seconds, above 0")

    def _check_minimum(self, **least: int) -> None:
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{self.section}.{name} is {getattr(self, name)}; give at least {low}")

    def api_key(self) -> str | None:
        """The key in the environment; None if no key is required.

        Raises ValueError for an empty key, and for one that many clients cannot send.
        """
        return secret_from_environment(self.api_key_env)


@dataclass(frozen=True)
class RoutingLimits:
    """Limits of the routing API (/v1/route). Raises ValueError for a value outside its range."""

    min_threshold: float = 0.0
    """A client's threshold is clamped to min_threshold..max_threshold."""
    max_threshold: float = 1.0
    max_tokens: int = 16
    """Limit of what the large model writes for one request."""
    cached_sessions: int = 8
    """Sessions of all clients whose KV cache is kept for a next request; 0 keeps none."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_threshold <= self.max_threshold <= 1.0:
            raise ValueError(
                f"service.endpoint.routing allows thresholds from {self.min_threshold} to {self.max_threshold}; "
                "give 0 <= min_threshold <= max_threshold <= 1"
            )
        if self.max_tokens < 1:
            raise ValueError(f"service.endpoint.routing.max_tokens is {self.max_tokens}; give at least 1")
        if self.cached_sessions < 0:
            raise ValueError(
                f"service.endpoint.routing.cached_sessions is {self.cached_sessions}; give 0 (none) or more"
            )

    def clamp_threshold(self, requested: float | None, default: float) -> float:
        """The router's own threshold, or the requested one within the limits."""
        return default if requested is None else min(self.max_threshold, max(self.min_threshold, requested))


@dataclass(frozen=True)
class EndpointOptions(ServerOptions):
    """The OpenAI endpoint. Raises ValueError for a value outside its range."""

    model_name: str = ""
    """The model's name for clients; empty: the gateway's name for it."""
    default_temperature: float = 1.0
    """Used if a request names none; 1 is OpenAI's default."""
    seed: int = 0
    """A request without a seed gets one derived from this seed and the request's number."""
    cached_conversations: int = 8
    """Conversations whose KV cache is kept for a next turn, the running one included; 0 keeps none."""
    routing: RoutingLimits = field(default_factory=RoutingLimits)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.default_temperature <= 2:
            raise ValueError(f"{self.section}.default_temperature is {self.default_temperature}; it is 0 (greedy) to 2")
        self._check_minimum(cached_conversations=0)
