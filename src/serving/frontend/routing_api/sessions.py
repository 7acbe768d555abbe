"""What the server keeps of a client's routing session: its KV cache, found by tokens, and the handle that names it."""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence

from serving.frontend.openai.gateway import CachedTurn, Conversation, shared_prefix_len
from serving.messages import TokenIds

Owner = tuple[str, str]
"""(client, session id): a client cannot reach another client's session."""


class RoutingSessions:
    """At most `capacity` KV caches, least recently used evicted first. A cache serves one request at a time."""

    def __init__(self, capacity: int, on_evict: Callable[[str], None]) -> None:
        self.capacity, self._on_evict = capacity, on_evict
        self._idle: OrderedDict[Owner, tuple[str, CachedTurn]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return len(self._idle)

    def acquire(self, owner: Owner, prompt: TokenIds) -> Conversation | None:
        """The owner's cache if its tokens begin the prompt, else a new one; None if `capacity` is 0."""
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
    """Signs a text for a client and its session (`llm_state`). Nothing is stored: a handle is valid until the process
    ends.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def issue(self, client: str, session: str, text: Sequence[int]) -> str:
        return f"{_VERSION_PREFIX}{len(text)}.{self._signature(client, session, text)}"

    def mismatch(self, handle: str, client: str, session: str, context: Sequence[int]) -> str:
        """Why the handle was not issued for a beginning of this context; empty if it was."""
        before, _, rest = handle.partition(_VERSION_PREFIX)
        digits, _, signature = rest.partition(".")
        if before or not (digits.isascii() and digits.isdecimal() and len(digits) < 10) or not signature:
            return "this server issued no such handle"
        expected = self._signature(client, session, context[: int(digits)])
        same = hmac.compare_digest(signature.encode(), expected.encode())
        return "" if same else "it was not issued for this client, session and context"

    def _signature(self, client: str, session: str, text: Sequence[int]) -> str:
        """Each part is preceded by its length, so that different parts cannot give the same bytes."""
        parts = [client.encode(), session.encode(), b"".join(token.to_bytes(8, "big") for token in text)]
        signed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._secret, signed, "sha256").hex()
