"""Which KV cache serves a client's session: found by the tokens that this server itself ran, never by what is said.

What a server gives out as llm_state: a name for a text that it wrote behind, which only it can make.
"""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence

from serving.frontend.openai.gateway import CachedTurn, Conversation, TokenIds, shared_prefix_len

Owner = tuple[str, str]
"""(client, its name for the session): nobody names another's."""


class RoutingSessions:
    """At most `capacity`; the one unused for longest is forgotten first. One question of a session at a time."""

    def __init__(self, capacity: int, on_evict: Callable[[str], None]) -> None:
        self.capacity, self._on_evict = capacity, on_evict
        self._idle: OrderedDict[Owner, tuple[str, CachedTurn]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return len(self._idle)

    def acquire(self, owner: Owner, prompt: TokenIds) -> Conversation | None:
        """Its cache, as far as its tokens begin the prompt; a new one where they do not, None where none is kept."""
        if not self.capacity:
            return None
        if found := self._idle.pop(owner, None):
            name, turn = found
            if n := shared_prefix_len(turn, prompt):
                return Conversation(name, n)
            self._on_evict(name)
        self._count += 1
        return Conversation(f"route-{self._count}", 0)

    def store(self, owner: Owner, conversation: Conversation | None, prompt: TokenIds, answer: TokenIds) -> None:
        if conversation is None:
            return
        if old := self._idle.pop(owner, None):
            self._on_evict(old[0])
        self._idle[owner] = conversation.name, CachedTurn(len(prompt), prompt + answer)
        while len(self._idle) > self.capacity:
            self._on_evict(self._idle.popitem(last=False)[1][0])

    def discard(self, conversation: Conversation | None) -> None:
        if conversation:
            self._on_evict(conversation.name)


_VERSION_PREFIX = "v1."


class StateHandles:
    """Bound to a client and its session; nothing is kept, and a process's handles end with it."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def issue(self, client: str, session: str, text: Sequence[int]) -> str:
        return f"{_VERSION_PREFIX}{len(text)}.{self._signature(client, session, text)}"

    def mismatch(self, handle: str, client: str, session: str, context: Sequence[int]) -> str:
        """Why a handle says nothing of this context; empty where it does."""
        mark, _, rest = handle.partition(_VERSION_PREFIX)
        digits, _, shown = rest.partition(".")
        if mark or not (digits.isascii() and digits.isdecimal() and len(digits) < 10) or not shown:
            return "it is none of this server's"
        known = hmac.compare_digest(shown.encode(), self._signature(client, session, context[: int(digits)]).encode())
        return "" if known else "it was not issued for this client, session and context"

    def _signature(self, client: str, session: str, text: Sequence[int]) -> str:
        """Of parts of which none can be taken for another."""
        parts = [client.encode(), session.encode(), b"".join(token.to_bytes(8, "big") for token in text)]
        said = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._secret, said, "sha256").hex()
