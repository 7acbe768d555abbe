"""The two kinds of request, as the rest of the endpoint sees them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from serving.frontend.openai.schema import Fields, Question

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

Finish = Literal["stop", "length"]
Choice = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A parsed request; `inputs` are what its form reads."""

    question: Question
    inputs: tuple[Any, ...]


class Form(Protocol):
    """One URL's request and response; all else is common."""

    name: str
    id_prefix: str
    object_name: str
    """Of a whole response."""
    chunk_name: str
    """Of one event of a stream."""
    limit: int | None
    """Tokens to write where the client does not say; None: what is left of the context."""

    def parse(self, fields: Fields, temperature: float, seed: int) -> Asked:
        """Raises ApiError (400)."""
        ...

    def encode(self, asked: Asked, tokenizer: "Tokenizer") -> Sequence[tuple[int, ...]]:
        """One prompt per choice. Raises ApiError (400)."""
        ...

    def stops(self, tokenizer: "Tokenizer", /) -> tuple[str, ...]:
        """Stop strings beside the client's own."""
        ...

    def choice(self, index: int, text: str, finish: Finish) -> Choice: ...
    def opening(self, index: int, /) -> Choice | None: ...
    def delta(self, index: int, text: str, finish: Finish | None) -> Choice: ...
