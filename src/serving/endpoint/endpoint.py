"""Where the device's OpenAI-compatible endpoint listens, and what it lets in."""

import os
from dataclasses import dataclass, field
from ipaddress import ip_address

from serving.routing.allowed import Allowed


@dataclass(frozen=True)
class Endpoint:
    """Loopback only, unless `host` says otherwise; a key is asked for once the environment holds one.

    Raises ValueError for a value outside its range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free port."""
    api_key_env: str = "TANDEM_API_KEY"
    """The environment variable with the key that clients must show; unset: no key is asked for."""
    model: str = ""
    """What clients call the model; empty: the name that the gateway gives."""
    temperature: float = 1.0
    """Of requests that name none; 1 is OpenAI's default."""
    seed: int = 0
    """Seeds of requests that name none are drawn from this one, by their number."""
    queue: int = 16
    """Requests that may wait while one is served; the next is told to come back (429)."""
    retry_after_s: float = 1.0
    conversations: int = 8
    """Conversations whose KV cache is kept for a next turn, the one being served included; 0 keeps none."""
    max_body_nbytes: int = 1 << 20
    connections: int = 128
    body_s: float = 30.0
    """How long a request's body may take to arrive."""
    stall_s: float = 30.0
    """How long a client may leave what was sent unread before its connection is closed."""
    routing: Allowed = field(default_factory=Allowed)
    """What those may do who ask for routes (/v1/route)."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("service.endpoint.host is empty; 127.0.0.1 is for this machine alone, 0.0.0.0 for all")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"service.endpoint.port is {self.port}; it is 0 (any free port) to 65535")
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"service.endpoint.temperature is {self.temperature}; it is 0 (greedy) to 2")
        for name, low in (("queue", 0), ("conversations", 0), ("max_body_nbytes", 1), ("connections", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"service.endpoint.{name} is {getattr(self, name)}; give at least {low}")
        for name in ("retry_after_s", "body_s", "stall_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"service.endpoint.{name} is {getattr(self, name)}; it is a time in seconds, above 0")

    @property
    def loopback(self) -> bool:
        """Can only this machine reach it?"""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def api_key(self) -> str | None:
        """The key in the environment, without blanks around it, which no header can carry.

        Raises ValueError for one that is empty, which would let everybody in.
        """
        key = os.environ[self.api_key_env].strip() if self.api_key_env in os.environ else None
        if key == "":
            raise ValueError(f"{self.api_key_env} is set but empty; give it a key, or unset it to serve without one")
        return key
