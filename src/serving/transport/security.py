"""TLS and the bearer token of a stream; secrets in the environment, and hosts of this machine, for HTTP too."""

import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from serving.transport.limits import ProtocolError

if TYPE_CHECKING:
    import grpc

AUTHORIZATION_HEADER = "authorization"


def secret_from_environment(name: str) -> str | None:
    """The value of an environment variable, stripped: no header can carry blanks around it. None if it is not set.

    Raises ValueError for an empty one, which any client could show, and for one that many clients cannot send.
    """
    if name not in os.environ:
        return None
    secret = os.environ[name].strip()
    if not secret:
        raise ValueError(f"{name} is set but empty; give it a value, or unset it to run without one")
    if not (secret.isascii() and secret.isprintable()):
        raise ValueError(f"{name} is not printable ASCII, and many clients cannot send it; give it another value")
    return secret


def is_loopback_host(host: str) -> bool:
    """True for a loopback address, without brackets, and for `localhost`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Security:
    """Paths and the name of an environment variable; holds no secret itself.

    A server with `certificate` and `private_key` uses TLS; a client with `ca_certificate` requires it. The token is
    read from the environment when needed; a server with a token refuses streams without it. A token with an address
    beyond this machine requires TLS; a blank one is an error. Raises ValueError for a certificate without its key or
    the reverse.
    """

    certificate: str | None = None
    """PEM file: the server's certificate chain."""
    private_key: str | None = None
    """PEM file: the server's private key."""
    ca_certificate: str | None = None
    """PEM file that a client trusts: the CA that signed the server's certificate, or that certificate itself."""
    token_env: str = "TANDEM_TOKEN"
    """Name of the environment variable with the token."""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.private_key):
            given, missing = ("certificate", "private_key") if self.certificate else ("private_key", "certificate")
            raise ValueError(f"security: {given} is given without {missing}; TLS needs both.")
        if not self.token_env:
            raise ValueError("security.token_env is empty; name the environment variable of the token.")

    @property
    def token(self) -> str:
        """Empty if there is none. Raises ValueError for a blank one, and for one that many clients cannot send."""
        return secret_from_environment(self.token_env) or ""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """A client's metadata; empty without a token."""
        return ((AUTHORIZATION_HEADER, f"Bearer {self.token}"),) if self.token else ()

    def authenticate(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        """Raises ProtocolError (UNAUTHENTICATED) if this server has a token and `metadata` lacks it."""
        if not self.token:
            return
        shown = next((value for name, value in metadata if name == AUTHORIZATION_HEADER), None)
        if shown is None:
            raise ProtocolError("UNAUTHENTICATED", f"this server requires a token; set {self.token_env} on the client.")
        shown = shown if isinstance(shown, bytes) else shown.encode()
        if not hmac.compare_digest(shown, f"Bearer {self.token}".encode()):
            raise ProtocolError(
                "UNAUTHENTICATED", f"wrong token; set {self.token_env} to the same value on both sides."
            )

    def check_token_is_protected(self, address: str, tls: bool) -> None:
        """Raises ValueError if the token would cross a network unencrypted, or is blank."""
        if self.token and not tls and not is_loopback(address):
            raise ValueError(
                f"transport: {self.token_env} is set, but {address} is beyond this machine and the connection has no "
                "TLS: others could read the token. Set security.certificate and security.private_key on the server and "
                f"security.ca_certificate on the client, or unset {self.token_env} on a trusted network."
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
    """True if `host:port` (or `unix:path`) is on this machine."""
    return address.startswith("unix:") or is_loopback_host(address.rpartition(":")[0].strip("[]"))


def _read(field: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"security.{field}={path} cannot be read: {error.strerror}.") from None
