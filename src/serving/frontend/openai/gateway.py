"""What the endpoint asks of the device behind it; the real-time driver implements it in the same event loop.

Which earlier turn a prompt continues, so that its KV cache is used again.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from serving.messages import Origin, Routing, Sampling

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer
    from serving.policy.slots.routed_offload import Routed


@dataclass(frozen=True, slots=True)
class Conversation:
    """Under which name a request's KV caches live on, and how much of an earlier turn serves it."""

    name: str
    shared: int
    """The prompt's first `shared` tokens are those of the name's last turn; always less than the whole prompt."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that became agreed, as in `Deliver`."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    ending: Literal["", "complete", "cancelled", "failed"] = ""
    cached: int = 0
    """Prompt tokens that were really found in the KV cache; told once, with any piece."""


class RefusedError(ValueError):
    """This request asks for what the policy or the models cannot do; the message is for the client."""


class Gateway(Protocol):
    """A device that collaborates with its cloud, one request at a time."""

    @property
    def model(self) -> str: ...

    @property
    def created(self) -> int:
        """When the model was made, in Unix seconds."""
        ...

    @property
    def tokenizer(self) -> "Tokenizer": ...

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together, at most."""
        ...

    @property
    def ready(self) -> bool:
        """Are the models loaded, and the cloud reachable where the policy cannot do without it?"""
        ...

    @property
    def cloud(self) -> bool:
        """Is the cloud reachable?"""
        ...

    @property
    def routed(self) -> "Routed | None":
        """How the policy routes tokens, if it does."""
        ...

    @property
    def uplink_nbytes(self) -> int:
        """Sent to the cloud since the start."""
        ...

    @property
    def downlink_nbytes(self) -> int: ...

    def ask(
        self,
        prompt: tuple[int, ...],
        limit: int,
        sampling: Sampling | None,
        conversation: Conversation | None,
        routing: Routing | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """Pieces up to one with an ending; at most `limit` tokens; closing the generator early cancels the request.

        Afterwards, however it ended, the caches of a named conversation may be kept for its next turn; a name whose
        caches are gone starts from nothing (`cached` 0). Raises RefusedError before the first piece.
        """
        ...

    def forget(self, conversation: str) -> None:
        """The conversation has no next turn: its caches may go."""
        ...


Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """The last turn of a conversation that nobody is asking now."""

    prompt: int
    """How many of the tokens were asked; the others were answered."""
    tokens: Tokens


class Conversations:
    """At most `bound` of them; the one unused for longest is forgotten first, and `forget` hears its name.

    A conversation that is taken is nobody else's until it is parked again: one request at a time.
    """

    def __init__(self, bound: int, forget: Callable[[str], None]) -> None:
        self.bound, self._forget = bound, forget
        self._parked: OrderedDict[str, Turn] = OrderedDict()
        self._taken: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return len(self._parked) + len(self._taken)

    def find(self, prompt: Tokens) -> Conversation | None:
        """The parked conversation that shares most with this prompt, all that was asked before included.

        Its answer may differ from what the prompt repeats of it: chat templates leave out what a model only thought.
        """
        best = max(
            (Conversation(name, shared(turn, prompt)) for name, turn in self._parked.items()),
            key=lambda found: found.shared,
            default=None,
        )
        return best if best and best.shared else None

    def take(self, prompt: Tokens) -> Conversation | None:
        """The conversation of this prompt's earlier turn, or a new one; None where none are kept."""
        if not self.bound:
            return None
        found = self.find(prompt) or self._new()
        self._parked.pop(found.name, None)
        self._taken.add(found.name)
        self._evict()
        return found

    def park(self, conversation: Conversation | None, prompt: Tokens, answer: Tokens) -> None:
        """A turn is over; another may follow."""
        if conversation:
            self._taken.discard(conversation.name)
            self._parked[conversation.name] = Turn(len(prompt), prompt + answer)
            self._evict()

    def drop(self, conversation: Conversation | None) -> None:
        """A turn broke off: nothing of it is worth keeping."""
        if conversation:
            self._taken.discard(conversation.name)
            self._forget(conversation.name)

    def _new(self) -> Conversation:
        self._count += 1
        return Conversation(f"conversation-{self._count}", 0)

    def _evict(self) -> None:
        while self._parked and len(self) > self.bound:
            self._forget(self._parked.popitem(last=False)[0])


def shared(turn: Turn, prompt: Tokens) -> int:
    """Leading tokens in common; 0 unless all that was asked in `turn` is among them.

    Never the whole prompt: its last token must be computed for the first answer token to exist.
    """
    if turn.tokens[: turn.prompt] != prompt[: turn.prompt]:
        return 0
    n = min(len(turn.tokens), len(prompt))
    same = next((i for i in range(turn.prompt, n) if turn.tokens[i] != prompt[i]), n)
    return min(same, len(prompt) - 1)
