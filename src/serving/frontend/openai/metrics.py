"""Statistics of one request, and the Prometheus metrics of an endpoint."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving.frontend.openai.admission import AdmissionQueue, RunningRequests
from serving.frontend.openai.gateway import Gateway
from serving.messages import Origin


@dataclass
class RequestStats:
    """Tokens, latencies and outcome of one request. Times are seconds of the endpoint's clock and include queueing."""

    arrived_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    origins: Counter[Origin] = field(default_factory=Counter)
    tbts_s: list[float] = field(default_factory=list)
    """Time between tokens of one answer (TBT); 0 between tokens of one delta."""
    ttft_s: float | None = None
    outcome: str = "disconnected"
    """The default stands if the client disconnects."""
    _last_token_s: float | None = None

    @property
    def completion_tokens(self) -> int:
        return self.origins.total()

    def begin_prompt(self, prompt_tokens: int) -> None:
        """Call before the first token of each prompt's answer."""
        self.prompt_tokens += prompt_tokens
        self._last_token_s = None

    def count_token(self, origin: Origin, now: float) -> None:
        self.origins[origin] += 1
        if self.ttft_s is None:
            self.ttft_s = now - self.arrived_s
        if self._last_token_s is not None:
            self.tbts_s.append(now - self._last_token_s)
        self._last_token_s = now

    @property
    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    @property
    def extension(self) -> dict[str, Any]:
        """The `tandem` object of a response: where its tokens come from, and TTFT."""
        return {
            "origins": dict(self.origins),
            "offline_tokens": self.origins["offline"],
            "ttft_ms": None if self.ttft_s is None else round(1000 * self.ttft_s, 3),
        }


TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TBT_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class EndpointMetrics:
    """Counters grow as requests end; gauges are read at each scrape. The registry is the endpoint's own."""

    def __init__(self, gateway: Gateway, queue: AdmissionQueue, running: RunningRequests) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests by how they ended.", "endpoint", "outcome")
        self._tokens = self._counter("tokens", "Answer tokens by origin.", "origin")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._cached = self._counter("cached_tokens", "Prompt tokens found in the KV cache.")
        self._ttft = self._histogram("ttft_seconds", "From a request's arrival to its first token.", TTFT_BUCKETS_S)
        self._tbt = self._histogram("tbt_seconds", "Between tokens; 0 within one delta.", TBT_BUCKETS_S)
        self._gauge("queue_length", "Requests that wait.", lambda: queue.waiting)
        self._gauge("running_requests", "Requests that run or wait.", lambda: len(running))
        self._gauge("cloud_reachable", "1 while the cloud can be reached.", lambda: float(gateway.cloud_reachable))
        self._gauge("ready", "1 while requests are answered.", lambda: float(gateway.ready and not running.stopping))
        self.registry.register(_TrafficCollector(gateway))

    def record(self, endpoint: str, stats: RequestStats) -> None:
        """Counts a request that has ended, with whatever outcome."""
        self._requests.labels(endpoint, stats.outcome).inc()
        self._prompt.inc(stats.prompt_tokens)
        self._cached.inc(stats.cached_tokens)
        for origin, n in stats.origins.items():
            self._tokens.labels(origin).inc(n)
        if stats.ttft_s is not None:
            self._ttft.observe(stats.ttft_s)
        for tbt_s in stats.tbts_s:
            self._tbt.observe(tbt_s)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, description: str, *labels: str) -> prometheus_client.Counter:
        return prometheus_client.Counter(f"tandem_{name}", description, labels, registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"tandem_{name}", description, registry=self.registry, buckets=buckets)

    def _gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        Gauge(f"tandem_{name}", description, registry=self.registry).set_function(read)


class _TrafficCollector(Collector):
    """Exports the gateway's byte counters."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("tandem_uplink_bytes", "Sent to the cloud.", self._gateway.uplink_nbytes)
        yield CounterMetricFamily("tandem_downlink_bytes", "Received from the cloud.", self._gateway.downlink_nbytes)
