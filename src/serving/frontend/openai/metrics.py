"""What Prometheus reads of this device, in a registry of its own.

What one request came to: tokens, who wrote them, when they were seen, and how it ended.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving.frontend.openai.admission import Line, Running
from serving.frontend.openai.gateway import Gateway
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


TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TBT_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """Counts requests as they end; what is a state now is read when somebody asks."""

    def __init__(self, gateway: Gateway, line: Line, running: Running) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests by how they ended.", "route", "outcome")
        self._tokens = self._counter("tokens", "Answer tokens by who wrote them.", "origin")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._cached = self._counter("cached_tokens", "Prompt tokens found in the KV cache.")
        self._ttft = self._histogram("ttft_seconds", "From a request's arrival to its first token.", TTFT_S)
        self._tbt = self._histogram("tbt_seconds", "Between tokens; 0 between those seen together.", TBT_S)
        self._gauge("queue_length", "Requests that wait for their turn.", lambda: line.waiting)
        self._gauge("running_requests", "Requests in hand, the waiting ones included.", lambda: len(running))
        self._gauge("cloud_reachable", "1 while the cloud can be reached.", lambda: float(gateway.cloud))
        self._gauge("ready", "1 while requests are answered.", lambda: float(gateway.ready and not running.stopping))
        self.registry.register(_Traffic(gateway))

    def finished(self, route: str, tally: Tally) -> None:
        """A request is over, well or not."""
        self._requests.labels(route, tally.outcome).inc()
        self._prompt.inc(tally.prompt)
        self._cached.inc(tally.cached)
        for origin, n in tally.origins.items():
            self._tokens.labels(origin).inc(n)
        if tally.ttft_s is not None:
            self._ttft.observe(tally.ttft_s)
        for gap_s in tally.gaps_s:
            self._tbt.observe(gap_s)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> prometheus_client.Counter:
        return prometheus_client.Counter(f"tandem_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"tandem_{name}", what, registry=self.registry, buckets=buckets)

    def _gauge(self, name: str, what: str, read: Callable[[], float]) -> None:
        Gauge(f"tandem_{name}", what, registry=self.registry).set_function(read)


class _Traffic(Collector):
    """Counters that the gateway keeps."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("tandem_uplink_bytes", "Sent to the cloud.", self._gateway.uplink_nbytes)
        yield CounterMetricFamily("tandem_downlink_bytes", "Received from the cloud.", self._gateway.downlink_nbytes)
