"""What a server gives out as llm_state: a name for a text that it wrote behind, which only it can make."""

import hmac
import secrets
from collections.abc import Sequence

Tokens = Sequence[int]
_MARK = "v1."


class Handles:
    """Bound to a client and its session; nothing is kept, and a process's handles end with it."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def issue(self, client: str, session: str, text: Tokens) -> str:
        return f"{_MARK}{len(text)}.{self._mark(client, session, text)}"

    def problem(self, handle: str, client: str, session: str, context: Tokens) -> str:
        """Why a handle says nothing of this context; empty where it does."""
        mark, _, rest = handle.partition(_MARK)
        digits, _, shown = rest.partition(".")
        if mark or not (digits.isascii() and digits.isdecimal() and len(digits) < 10) or not shown:
            return "it is none of this server's"
        known = hmac.compare_digest(shown.encode(), self._mark(client, session, context[: int(digits)]).encode())
        return "" if known else "it was not issued for this client, session and context"

    def _mark(self, client: str, session: str, text: Tokens) -> str:
        """Of parts of which none can be taken for another."""
        parts = [client.encode(), session.encode(), b"".join(token.to_bytes(8, "big") for token in text)]
        said = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._secret, said, "sha256").hex()
