"""What the endpoint needs of the device behind it, and the index of cached conversations.

`serving.frontend.device_gateway.DeviceGateway` implements `Gateway` in the endpoint's event loop.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from serving.messages import Origin, RoutingOptions, SamplingParams, TokenIds

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer
    from serving.policy.slots.routed_offload import RoutedOffload


@dataclass(frozen=True, slots=True)
class Conversation:
    """The name of a conversation's KV caches, and how much of them a prompt can use."""

    name: str
    shared_len: int
    """Leading prompt tokens that the conversation's last turn contains; less than the whole prompt."""


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """Newly emitted tokens, as in `EmitTokens`."""

    tokens: TokenIds
    origins: tuple[Origin, ...]
    ending: Literal["", "complete", "cancelled", "failed"] = ""
    cached_tokens: int = 0
    """Prompt tokens found in the KV cache; reported once, with any delta of the answer."""


class UnsupportedRequestError(ValueError):
    """The policy or the models cannot serve this request; the message is for the client."""


class Gateway(Protocol):
    """A device that works with its cloud, one request at a time."""

    @property
    def model_name(self) -> str: ...

    @property
    def created_unix_s(self) -> int:
        """Creation time of the model, in Unix seconds."""
        ...

    @property
    def tokenizer(self) -> "Tokenizer": ...

    @property
    def context_len(self) -> int:
        """Tokens of prompt and answer together, at most."""
        ...

    @property
    def ready(self) -> bool:
        """True if the models are loaded, and the cloud is reachable or not needed."""
        ...

    @property
    def cloud_reachable(self) -> bool: ...

    @property
    def routed(self) -> "RoutedOffload | None":
        """The slot that routes tokens; None if the policy has none."""
        ...

    @property
    def uplink_nbytes(self) -> int:
        """Bytes sent to the cloud since the start."""
        ...

    @property
    def downlink_nbytes(self) -> int: ...

    def generate(
        self,
        prompt: TokenIds,
        max_new_tokens: int,
        sampling: SamplingParams | None,
        conversation: Conversation | None,
        routing: RoutingOptions | None = None,
        stop_strings: tuple[str, ...] = (),
    ) -> AsyncGenerator[TokenDelta, None]:
        """Yields deltas up to one with an `ending`; at most `max_new_tokens` tokens. Closing the generator early
        cancels the request.

        Device and cloud end an answer at one of `stop_strings`. They compare neither blanks before the first word nor
        characters of several tokens, so the caller must search the text for these strings, too.

        The caches of a conversation may be kept for its next turn, however this one ends; if they are gone, the next
        turn has `cached_tokens` 0. Raises UnsupportedRequestError before the first delta.
        """
        ...

    def release(self, conversation: str) -> None:
        """Frees the caches of a conversation that will have no next turn."""
        ...


@dataclass(frozen=True, slots=True)
class CachedTurn:
    """The last turn of an idle conversation."""

    prompt_len: int
    """The first `prompt_len` tokens are the prompt, the others the answer."""
    tokens: TokenIds


class PrefixIndex:
    """At most `capacity` conversations, least recently used evicted first; `on_evict` gets the evicted name.

    A conversation serves one request at a time: between `acquire` and `store` no other request finds it.
    """

    def __init__(self, capacity: int, on_evict: Callable[[str], None]) -> None:
        self.capacity, self._on_evict = capacity, on_evict
        self._idle: OrderedDict[str, CachedTurn] = OrderedDict()
        self._in_use: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._in_use)

    def longest_match(self, prompt: TokenIds) -> Conversation | None:
        """The idle conversation with the longest common prefix that includes its whole last prompt; None if there is
        none.

        The prompt may repeat only part of the last answer: chat templates leave reasoning out.
        """
        best = max(
            (Conversation(name, shared_prefix_len(turn, prompt)) for name, turn in self._idle.items()),
            key=lambda conversation: conversation.shared_len,
            default=None,
        )
        return best if best and best.shared_len else None

    def acquire(self, prompt: TokenIds) -> Conversation | None:
        """The conversation that this prompt continues, or a new one; None if `capacity` is 0."""
        if not self.capacity:
            return None
        found = self.longest_match(prompt) or self._new()
        self._idle.pop(found.name, None)
        self._in_use.add(found.name)
        self._evict()
        return found

    def store(self, conversation: Conversation | None, prompt: TokenIds, answer: TokenIds) -> None:
        """Makes a conversation idle after a complete turn."""
        if conversation:
            self._in_use.discard(conversation.name)
            self._idle[conversation.name] = CachedTurn(len(prompt), prompt + answer)
            self._evict()

    def discard(self, conversation: Conversation | None) -> None:
        """Evicts a conversation after an incomplete turn."""
        if conversation:
            self._in_use.discard(conversation.name)
            self._on_evict(conversation.name)

    def _new(self) -> Conversation:
        self._count += 1
        return Conversation(f"conversation-{self._count}", 0)

    def _evict(self) -> None:
        while self._idle and len(self) > self.capacity:
            self._on_evict(self._idle.popitem(last=False)[0])


def shared_prefix_len(turn: CachedTurn, prompt: TokenIds) -> int:
    """Number of leading tokens in common; 0 unless they include the turn's whole prompt.

    At most len(prompt) - 1: the last token must be computed to get the first answer token.
    """
    if turn.tokens[: turn.prompt_len] != prompt[: turn.prompt_len]:
        return 0
    n = min(len(turn.tokens), len(prompt))
    same = next((i for i in range(turn.prompt_len, n) if turn.tokens[i] != prompt[i]), n)
    return min(same, len(prompt) - 1)
