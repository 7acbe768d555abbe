"""A cloud's `/healthz`, `/readyz` and `/metrics`, and the statistics behind them."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving import messages
from serving.frontend.openai.http import HostGuard, HttpServer
from serving.frontend.openai.options import HostOptions
from serving.messages import HEADER_NBYTES, Command, Event, ForwardWork, Message, MessageReceived, Outcome, Work
from serving.nodes.worker import Worker


class CloudStats:
    """An observer of a cloud's nodes, given in path order.

    Requests, sessions and cached tokens are those of the first node. Bytes are exchanged with devices, and counted as
    the policy counts them.
    """

    def __init__(self, *nodes: Worker) -> None:
        self.nodes, self.entry_node = nodes, nodes[0]
        self._names = frozenset(node.name for node in nodes)
        self.requests = self.batches = self.tokens = self.errors = 0
        self.busy_s = 0.0
        self.uplink_nbytes = self.downlink_nbytes = 0

    @property
    def queue_len(self) -> int:
        """Queued requests, prompt chunks included."""
        return sum(len(parts) for node in self.nodes for parts in node.queue.values())

    @property
    def sessions(self) -> int:
        return len(self.entry_node.session_registry.owners)

    @property
    def cached_tokens(self) -> int:
        return self.entry_node.kv_accounting.used_tokens

    @property
    def capacity_tokens(self) -> float:
        return self.entry_node.kv_accounting.capacity_tokens

    # Observer.

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if (
            node == self.entry_node.name
            and isinstance(event, MessageReceived)
            and isinstance(event.message, messages.Request)
        ):
            piece = event.message.slice
            self.requests += 1
            self.uplink_nbytes += HEADER_NBYTES + piece.nbytes + self.entry_node.policy.payload.nbytes(piece)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if isinstance(work, ForwardWork):
            self.batches += 1
            self.tokens += sum(piece.num_tokens for piece in work.slices)
            self.busy_s += end_s - begin_s

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:  # noqa: ARG002
        if to not in self._names:
            self.downlink_nbytes += nbytes


MAX_CONNECTIONS = 16


class HealthServer:
    """`num_devices` returns how many devices are connected, `is_stopping` whether the cloud ends its work."""

    def __init__(
        self, stats: CloudStats, num_devices: Callable[[], int], is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._registry, self._num_devices, self._is_stopping = CollectorRegistry(), num_devices, is_stopping
        self._registry.register(_StatsCollector(stats, num_devices))
        self._http: HttpServer | None = None

    async def serve(self, options: HostOptions, port: int) -> int:
        """Starts, and returns the port. Raises ValueError for an address in use."""
        routes = [Route(f"/{page.__name__}", page) for page in (self.healthz, self.readyz, self.metrics)]
        app = HostGuard(Starlette(routes=routes), options)
        self._http = HttpServer(app, "service.health", options.host, port, MAX_CONNECTIONS)
        await self._http.start()
        return self._http.port

    async def stop(self) -> None:
        if self._http:
            await self._http.stop()

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"alive": True})

    async def readyz(self, _: Request) -> Response:
        """Ready until the cloud stops: the pages are served only after the models are loaded."""
        ready = not self._is_stopping()
        return JSONResponse({"ready": ready, "devices": self._num_devices()}, 200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4; charset=utf-8")


class _StatsCollector(Collector):
    def __init__(self, stats: CloudStats, num_devices: Callable[[], int]) -> None:
        self._stats, self._num_devices = stats, num_devices

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        for name, description, value in (
            ("requests", "Requests from devices, prompt chunks included.", stats.requests),
            ("batches", "Batches that ran.", stats.batches),
            ("tokens", "Tokens in these batches.", stats.tokens),
            ("busy_seconds", "Time spent in batches.", stats.busy_s),
            ("errors", "Errors; details are in the log.", stats.errors),
            ("uplink_bytes", "Bytes from devices, as the policy counts them.", stats.uplink_nbytes),
            ("downlink_bytes", "Bytes to devices.", stats.downlink_nbytes),
        ):
            yield CounterMetricFamily(f"tandem_cloud_{name}", description, value)
        for name, description, value in (
            ("devices", "Connected devices.", self._num_devices()),
            ("sessions", "Sessions with state in this cloud.", stats.sessions),
            ("queue_length", "Requests that wait for a batch.", stats.queue_len),
            ("cached_tokens", "Tokens in the KV caches.", stats.cached_tokens),
            ("cache_capacity_tokens", "Token capacity of the KV caches.", stats.capacity_tokens),
        ):
            yield GaugeMetricFamily(f"tandem_cloud_{name}", description, value)
