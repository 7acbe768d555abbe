"""What the endpoint asks of the device behind it; the real-time driver implements it in the same event loop."""

from collections.abc import AsyncGenerator
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
