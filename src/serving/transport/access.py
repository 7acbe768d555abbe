"""Secrets in the environment, and hosts of this machine; for all servers and clients, of gRPC and of HTTP."""

import os
from ipaddress import ip_address


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
