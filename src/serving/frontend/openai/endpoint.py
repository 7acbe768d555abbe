"""How the device's OpenAI-compatible endpoint is set up."""

from dataclasses import dataclass, field

from serving.frontend.openai.allowed import Allowed
from serving.frontend.openai.options import Door


@dataclass(frozen=True)
class Endpoint(Door):
    """A door with what OpenAI's requests may leave open. Raises ValueError for a value outside its range."""

    model: str = ""
    """What clients call the model; empty: the name that the gateway gives."""
    temperature: float = 1.0
    """Of requests that name none; 1 is OpenAI's default."""
    seed: int = 0
    """Seeds of requests that name none are drawn from this one, by their number."""
    conversations: int = 8
    """Conversations whose KV cache is kept for a next turn, the one being served included; 0 keeps none."""
    routing: Allowed = field(default_factory=Allowed)
    """What those may do who ask for routes (/v1/route)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"{self.section}.temperature is {self.temperature}; it is 0 (greedy) to 2")
        self._at_least(conversations=0)
