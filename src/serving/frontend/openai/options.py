"""Where a server of this machine listens, and what it lets in.

How the device's OpenAI-compatible endpoint is set up.

What a server's owner allows those who ask for routes.
"""

import os
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import ClassVar


@dataclass(frozen=True)
class ServerOptions:
    """Loopback only, unless `host` says otherwise; a key is asked for once the environment holds one.

    Raises ValueError for a value outside its range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free port."""
    api_key_env: str = "TANDEM_API_KEY"
    """The environment variable with the key that clients must show; unset: no key is asked for."""
    max_waiting: int = 16
    """Requests that may wait while one is served; the next is told to come back (429)."""
    retry_after_s: float = 1.0
    max_body_nbytes: int = 1 << 20
    max_connections: int = 128
    body_timeout_s: float = 30.0
    """How long a request's body may take to arrive."""
    stall_timeout_s: float = 30.0
    """How long a client may leave what was sent unread before its connection is closed."""
    section: ClassVar[str] = "service.endpoint"
    """Of the configuration, for messages."""

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

    @property
    def is_loopback(self) -> bool:
        """Can only this machine reach it?"""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def url_host(self) -> str:
        """The host as a URL writes it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def api_key(self) -> str | None:
        """The key in the environment, without blanks around it, which no header can carry.

        Raises ValueError for one that is empty, which would let everybody in.
        """
        key = os.environ[self.api_key_env].strip() if self.api_key_env in os.environ else None
        if key == "":
            raise ValueError(f"{self.api_key_env} is set but empty; give it a key, or unset it to serve without one")
        return key


@dataclass(frozen=True)
class RoutingLimits:
    """Raises ValueError for a value outside its range."""

    min_threshold: float = 0.0
    """A client's threshold is moved into min_threshold..max_threshold."""
    max_threshold: float = 1.0
    max_tokens: int = 16
    """That the large model writes for one question, at most."""
    cached_sessions: int = 8
    """Of all clients together, whose KV cache is kept for a next question; 0 keeps none."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_threshold <= self.max_threshold <= 1.0:
            raise ValueError(
                f"service.endpoint.routing allows thresholds from {self.min_threshold} to {self.max_threshold}; "
                "give 0 <= min_threshold <= max_threshold <= 1"
            )
        if self.max_tokens < 1:
            raise ValueError(f"service.endpoint.routing.max_tokens is {self.max_tokens}; give at least 1")
        if self.cached_sessions < 0:
            raise ValueError(f"service.endpoint.routing.cached_sessions is {self.cached_sessions}; give 0 (none) or more")

    def clamp_threshold(self, requested: float | None, default: float) -> float:
        """What is compared with: the router's own, or what was asked for within what is allowed."""
        return default if requested is None else min(self.max_threshold, max(self.min_threshold, requested))


@dataclass(frozen=True)
class EndpointOptions(ServerOptions):
    """A door with what OpenAI's requests may leave open. Raises ValueError for a value outside its range."""

    model_name: str = ""
    """What clients call the model; empty: the name that the gateway gives."""
    default_temperature: float = 1.0
    """Of requests that name none; 1 is OpenAI's default."""
    seed: int = 0
    """Seeds of requests that name none are drawn from this one, by their number."""
    cached_conversations: int = 8
    """Conversations whose KV cache is kept for a next turn, the one being served included; 0 keeps none."""
    routing: RoutingLimits = field(default_factory=RoutingLimits)
    """What those may do who ask for routes (/v1/route)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.default_temperature <= 2:
            raise ValueError(f"{self.section}.default_temperature is {self.default_temperature}; it is 0 (greedy) to 2")
        self._check_minimum(cached_conversations=0)
