"""What the endpoint asks of the device behind it; the real-time driver implements it in the same event loop.

Which earlier turn a prompt continues, so that its KV cache is used again.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from serving.messages import Origin, RoutingOptions, SamplingParams

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer
    from serving.policy.slots.routed_offload import RoutedOffload


@dataclass(frozen=True, slots=True)
class Conversation:
    """Under which name a request's KV caches live on, and how much of an earlier turn serves it."""

    name: str
    shared_len: int
    """The prompt's first `shared_len` tokens are those of the name's last turn; always less than the whole prompt."""


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """Tokens that became agreed, as in `EmitTokens`."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    ending: Literal["", "complete", "cancelled", "failed"] = ""
    cached_tokens: int = 0
    """Prompt tokens that were really found in the KV cache; told once, with any piece."""


class UnsupportedRequestError(ValueError):
    """This request asks for what the policy or the models cannot do; the message is for the client."""


class Gateway(Protocol):
    """A device that collaborates with its cloud, one request at a time."""

    @property
    def model_name(self) -> str: ...

    @property
    def created_unix_s(self) -> int:
        """When the model was made, in Unix seconds."""
        ...

    @property
    def tokenizer(self) -> "Tokenizer": ...

    @property
    def context_len(self) -> int:
        """Tokens of prompt and answer together, at most."""
        ...

    @property
    def ready(self) -> bool:
        """Are the models loaded, and the cloud reachable where the policy cannot do without it?"""
        ...

    @property
    def cloud_reachable(self) -> bool:
        """Is the cloud reachable?"""
        ...

    @property
    def routed(self) -> "RoutedOffload | None":
        """How the policy routes tokens, if it does."""
        ...

    @property
    def uplink_nbytes(self) -> int:
        """Sent to the cloud since the start."""
        ...

    @property
    def downlink_nbytes(self) -> int: ...

    def generate(
        self,
        prompt: tuple[int, ...],
        max_new_tokens: int,
        sampling: SamplingParams | None,
        conversation: Conversation | None,
        routing: RoutingOptions | None = None,
    ) -> AsyncGenerator[TokenDelta, None]:
        """Pieces up to one with an ending; at most `max_new_tokens` tokens; closing the generator early cancels the
        request.

        Afterwards, however it ended, the caches of a named conversation may be kept for its next turn; a name whose
        caches are gone starts from nothing (`cached` 0). Raises RefusedError before the first piece.
        """
        ...

    def release(self, conversation: str) -> None:
        """The conversation has no next turn: its caches may go."""
        ...


TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CachedTurn:
    """The last turn of a conversation that nobody is asking now."""

    prompt_len: int
    """How many of the tokens were asked; the others were answered."""
    tokens: TokenIds


class PrefixIndex:
    """At most `capacity` of them; the one unused for longest is forgotten first, and `forget` hears its name.

    A conversation that is taken is nobody else's until it is parked again: one request at a time.
    """

    def __init__(self, capacity: int, on_evict: Callable[[str], None]) -> None:
        self.capacity, self._on_evict = capacity, on_evict
        self._idle: OrderedDict[str, CachedTurn] = OrderedDict()
        self._in_use: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._in_use)

    def longest_match(self, prompt: TokenIds) -> Conversation | None:
        """The parked conversation that shares most with this prompt, all that was asked before included.

        Its answer may differ from what the prompt repeats of it: chat templates leave out what a model only thought.
        """
        best = max(
            (Conversation(name, shared_prefix_len(turn, prompt)) for name, turn in self._idle.items()),
            key=lambda found: found.shared_len,
            default=None,
        )
        return best if best and best.shared_len else None

    def acquire(self, prompt: TokenIds) -> Conversation | None:
        """The conversation of this prompt's earlier turn, or a new one; None where none are kept."""
        if not self.capacity:
            return None
        found = self.longest_match(prompt) or self._new()
        self._idle.pop(found.name, None)
        self._in_use.add(found.name)
        self._evict()
        return found

    def store(self, conversation: Conversation | None, prompt: TokenIds, answer: TokenIds) -> None:
        """A turn is over; another may follow."""
        if conversation:
            self._in_use.discard(conversation.name)
            self._idle[conversation.name] = CachedTurn(len(prompt), prompt + answer)
            self._evict()

    def discard(self, conversation: Conversation | None) -> None:
        """A turn broke off: nothing of it is worth keeping."""
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
    """Leading tokens in common; 0 unless all that was asked in `turn` is among them.

    Never the whole prompt: its last token must be computed for the first answer token to exist.
    """
    if turn.tokens[: turn.prompt_len] != prompt[: turn.prompt_len]:
        return 0
    n = min(len(turn.tokens), len(prompt))
    same = next((i for i in range(turn.prompt_len, n) if turn.tokens[i] != prompt[i]), n)
    return min(same, len(prompt) - 1)
