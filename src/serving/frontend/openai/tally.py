"""What one request came to: tokens, who wrote them, when they were seen, and how it ended."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from serving.messages import Origin


@dataclass
class Tally:
    """`arrived_s` and all times are seconds of the endpoint's clock; waiting in line counts."""

    arrived_s: float
    prompt: int = 0
    cached: int = 0
    origins: Counter[Origin] = field(default_factory=Counter)
    gaps_s: list[float] = field(default_factory=list)
    """Between tokens, within one answer: tokens of one piece are seen together, so 0 between them (TBT)."""
    ttft_s: float | None = None
    outcome: str = "disconnected"
    """What it is if nobody says otherwise."""
    _seen_s: float | None = None

    @property
    def completion(self) -> int:
        return self.origins.total()

    def begin(self, prompt: int) -> None:
        """Another prompt's turn."""
        self.prompt += prompt
        self._seen_s = None

    def count(self, origin: Origin, now: float) -> None:
        """One token is seen."""
        self.origins[origin] += 1
        if self.ttft_s is None:
            self.ttft_s = now - self.arrived_s
        if self._seen_s is not None:
            self.gaps_s.append(now - self._seen_s)
        self._seen_s = now

    @property
    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    @property
    def tandem(self) -> dict[str, Any]:
        """The extension of the response: who wrote the answer."""
        return {
            "origins": dict(self.origins),
            "offline_tokens": self.origins["offline"],
            "ttft_ms": None if self.ttft_s is None else round(1000 * self.ttft_s, 3),
        }
