"""What a server's owner allows those who ask for routes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Allowed:
    """Raises ValueError for a value outside its range."""

    low: float = 0.0
    """A client's threshold is moved into low..high."""
    high: float = 1.0
    tokens: int = 16
    """That the large model writes for one question, at most."""
    sessions: int = 8
    """Of all clients together, whose KV cache is kept for a next question; 0 keeps none."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high <= 1.0:
            raise ValueError(
                f"service.endpoint.routing allows thresholds from {self.low} to {self.high}; give 0 <= low <= high <= 1"
            )
        if self.tokens < 1:
            raise ValueError(f"service.endpoint.routing.tokens is {self.tokens}; give at least 1")
        if self.sessions < 0:
            raise ValueError(f"service.endpoint.routing.sessions is {self.sessions}; give 0 (none) or more")

    def threshold(self, asked: float | None, own: float) -> float:
        """What is compared with: the router's own, or what was asked for within what is allowed."""
        return own if asked is None else min(self.high, max(self.low, asked))
