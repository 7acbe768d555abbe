"""Where a server of this machine listens, and what it lets in."""

import os
from dataclasses import dataclass
from ipaddress import ip_address
from typing import ClassVar


@dataclass(frozen=True)
class Door:
    """Loopback only, unless `host` says otherwise; a key is asked for once the environment holds one.

    Raises ValueError for a value outside its range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free port."""
    api_key_env: str = "TANDEM_API_KEY"
    """The environment variable with the key that clients must show; unset: no key is asked for."""
    queue: int = 16
    """Requests that may wait while one is served; the next is told to come back (429)."""
    retry_after_s: float = 1.0
    max_body_nbytes: int = 1 << 20
    connections: int = 128
    body_s: float = 30.0
    """How long a request's body may take to arrive."""
    stall_s: float = 30.0
    """How long a client may leave what was sent unread before its connection is closed."""
    section: ClassVar[str] = "service.endpoint"
    """Of the configuration, for messages."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError(f"{self.section}.host is empty; 127.0.0.1 is for this machine alone, 0.0.0.0 for all")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"{self.section}.port is {self.port}; it is 0 (any free port) to 65535")
        self._at_least(queue=0, max_body_nbytes=1, connections=1)
        for name in ("retry_after_s", "body_s", "stall_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{self.section}.{name} is {getattr(self, name)}; it is a time in seconds, above 0")

    def _at_least(self, **least: int) -> None:
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{self.section}.{name} is {getattr(self, name)}; give at least {low}")

    @property
    def loopback(self) -> bool:
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
