"""A hosted API: a large model that is asked over HTTP and paid by the token, in place of a cloud of one's own."""

from dataclasses import dataclass, field
from math import isfinite

from serving.core.provenance import check_date, check_sources

_FIGURES = frozenset({"usd_per_million_input_tokens", "usd_per_million_output_tokens", "ttft_s", "tokens_per_s"})
_MILLION = 1e6


@dataclass(frozen=True)
class HostedApi:
    """What a call costs and how long it takes: `ttft_s` until its first token, then `tokens_per_s`.

    Every call is billed for the whole text that it sends. `date` is the day or month of the prices, YYYY-MM(-DD).
    """

    name: str
    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float
    ttft_s: float
    """From the provider's side of the link: the time of the run's own link comes on top."""
    tokens_per_s: float
    date: str
    model: str | None = None
    """The architecture that it serves; None: another model, so that answers differ in quality."""
    sources: dict[str, str] = field(default_factory=dict)
    """Figure -> its source."""

    def __post_init__(self) -> None:
        check_sources(f"hosted API {self.name}", self.sources, _FIGURES)
        if missing := sorted(_FIGURES - self.sources.keys()):
            raise ValueError(
                f"hosted API {self.name}: no source for {', '.join(missing)}; write one for each below sources, "
                "'unverified: ...' for what is assumed."
            )
        for name in ("usd_per_million_input_tokens", "usd_per_million_output_tokens", "ttft_s"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"hosted API {self.name}: {name}={getattr(self, name)} must be 0 or more.")
        if not (isfinite(self.tokens_per_s) and self.tokens_per_s > 0):
            raise ValueError(f"hosted API {self.name}: tokens_per_s={self.tokens_per_s} must be above 0.")
        check_date(f"hosted API {self.name}", self.date, "prices")

    def usd(self, input_tokens: float, output_tokens: float) -> float:
        """US dollars for so many tokens."""
        per_input, per_output = self.usd_per_million_input_tokens, self.usd_per_million_output_tokens
        return (per_input * input_tokens + per_output * output_tokens) / _MILLION

    def call_s(self, output_tokens: int) -> float:
        """Seconds of one call, without the link."""
        return self.ttft_s + max(0, output_tokens - 1) / self.tokens_per_s
