"""TLS and the bearer token: who may talk, and who may listen in."""

import hmac
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from serving.transport.errors import ProtocolError

if TYPE_CHECKING:
    import grpc

AUTHORIZATION_HEADER = "authorization"


@dataclass(frozen=True)
class Security:
    """Paths and a variable's name, never a secret itself.

    A server with `certificate` and `private_key` speaks TLS; a client with `ca_certificate` expects it. The token is
    read from the environment when it is needed; where the server has one, streams without it are refused. A token never
    crosses a network readable: together with an address beyond this machine it needs TLS.

    Raises ValueError for a certificate without its key or the reverse.
    """

    certificate: str | None = None
    """PEM file, the server's chain."""
    private_key: str | None = None
    """PEM file, its private key."""
    ca_certificate: str | None = None
    """PEM file, what a client believes: the authority that signed the server's certificate, or that one itself."""
    token_env: str = "TANDEM_TOKEN"
    """The environment variable that holds the token."""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.private_key):
            given, missing = ("certificate", "private_key") if self.certificate else ("private_key", "certificate")
            raise ValueError(f"security: {given} is given without {missing}; TLS needs both.")
        if not self.token_env:
            raise ValueError("security.token_env is empty; name the environment variable of the token.")

    @property
    def token(self) -> str:
        """Empty where there is none."""
        return os.environ.get(self.token_env, "").strip()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a client shows; nothing without a token."""
        return ((AUTHORIZATION_HEADER, f"Bearer {self.token}"),) if self.token else ()

    def authenticate(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        """Raises ProtocolError (UNAUTHENTICATED) where the server has a token and the stream does not show it."""
        if not self.token:
            return
        shown = next((value for name, value in metadata if name == AUTHORIZATION_HEADER), None)
        if shown is None:
            raise ProtocolError(
                "UNAUTHENTICATED", f"this server wants a token; set {self.token_env} on the client's side."
            )
        shown = shown if isinstance(shown, bytes) else shown.encode()
        if not hmac.compare_digest(shown, f"Bearer {self.token}".encode()):
            raise ProtocolError(
                "UNAUTHENTICATED", f"the token is not this server's; set {self.token_env} to the same on both sides."
            )

    def check_token_is_protected(self, address: str, tls: bool) -> None:
        """Raises ValueError where the token would cross a network readable."""
        if self.token and not tls and not is_loopback(address):
            raise ValueError(
                f"transport: {self.token_env} is set, but {address} is beyond this machine and the connection has no "
                "TLS, so that anyone on the way could read the token. Give security.certificate and security.private_key to "
                f"the server and security.ca_certificate to the client, or unset {self.token_env} for a network you trust."
            )

    def server_credentials(self) -> "grpc.ServerCredentials | None":
        import grpc

        if not (self.certificate and self.private_key):
            return None
        pair = (_read("private_key", self.private_key), _read("certificate", self.certificate))
        return grpc.ssl_server_credentials([pair])

    def channel_credentials(self) -> "grpc.ChannelCredentials | None":
        import grpc

        if not self.ca_certificate:
            return None
        return grpc.ssl_channel_credentials(_read("ca_certificate", self.ca_certificate))


def is_loopback(address: str) -> bool:
    """Does `host:port` (or `unix:path`) stay on this machine?"""
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(field: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"security.{field}={path} cannot be read: {error.strerror}.") from None
