"""A cloud's pages for those who look after it: `/healthz`, `/readyz`, `/metrics`.

What a cloud counts of its own work while it serves.
"""

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
from serving.frontend.openai.http import Http
from serving.messages import HEADER_NBYTES, Command, Event, Forward, Message, Outcome, Received, Work
from serving.nodes.worker import Worker


class Census:
    """An observer of a cloud's nodes, in the order in which requests meet them; what they hold now is read from them.

    Requests, sessions and cached tokens are those of the first, bytes are what comes from and goes to devices, by the
    policy's own account.
    """

    def __init__(self, *nodes: Worker) -> None:
        self.nodes, self.node = nodes, nodes[0]
        self._names = frozenset(node.name for node in nodes)
        self.requests = self.batches = self.rows = self.errors = 0
        self.busy_s = 0.0
        self.uplink_nbytes = self.downlink_nbytes = 0

    @property
    def waiting(self) -> int:
        """Parts of requests in the queue."""
        return sum(len(parts) for node in self.nodes for parts in node.queue.values())

    @property
    def sessions(self) -> int:
        return len(self.node.tenancy.owners)

    @property
    def cached_tokens(self) -> int:
        return self.node.ledger.used

    @property
    def capacity_tokens(self) -> float:
        return self.node.ledger.capacity

    # The observer.

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if node == self.node.name and isinstance(event, Received) and isinstance(event.message, messages.Request):
            rows = event.message.rows
            self.requests += 1
            self.uplink_nbytes += HEADER_NBYTES + rows.nbytes + self.node.policy.exchange.nbytes(rows)

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if isinstance(work, Forward):
            self.batches += 1
            self.rows += sum(rows.n for rows in work.rows)
            self.busy_s += end_s - begin_s

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:  # noqa: ARG002
        if to not in self._names:
            self.downlink_nbytes += nbytes


CONNECTIONS = 16


class Health:
    """`devices` says how many are connected."""

    def __init__(self, census: Census, devices: Callable[[], int]) -> None:
        self._registry, self._devices = CollectorRegistry(), devices
        self._registry.register(_Counts(census, devices))
        self._http: Http | None = None

    async def serve(self, host: str, port: int) -> int:
        """The port that it got. Raises ValueError for an address that cannot be had."""
        routes = [Route(f"/{page.__name__}", page) for page in (self.healthz, self.readyz, self.metrics)]
        self._http = Http(Starlette(routes=routes), "service.health", host, port, CONNECTIONS)
        await self._http.start()
        return self._http.port

    async def stop(self) -> None:
        if self._http:
            await self._http.stop()

    async def healthz(self, _: Request) -> Response:
        """Alive: this answer is the proof."""
        return JSONResponse({"alive": True})

    async def readyz(self, _: Request) -> Response:
        """Models are loaded and devices may come, or these pages would not be there."""
        return JSONResponse({"ready": True, "devices": self._devices()})

    async def metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4; charset=utf-8")


class _Counts(Collector):
    def __init__(self, census: Census, devices: Callable[[], int]) -> None:
        self._census, self._devices = census, devices

    def collect(self) -> Iterator[Metric]:
        c = self._census
        for name, what, value in (
            ("requests", "Requests heard from devices, parts of prompts among them.", c.requests),
            ("batches", "Batches that ran.", c.batches),
            ("rows", "Rows in these batches.", c.rows),
            ("busy_seconds", "Time spent in batches.", c.busy_s),
            ("errors", "Errors survived; the log says what.", c.errors),
            ("uplink_bytes", "Heard from devices, as the policy counts it.", c.uplink_nbytes),
            ("downlink_bytes", "Said to devices.", c.downlink_nbytes),
        ):
            yield CounterMetricFamily(f"tandem_cloud_{name}", what, value)
        for name, what, value in (
            ("devices", "Devices that are connected.", self._devices()),
            ("sessions", "Sessions with something kept for them.", c.sessions),
            ("queue_length", "Requests that wait for a batch.", c.waiting),
            ("cached_tokens", "Tokens in the KV caches.", c.cached_tokens),
            ("cache_capacity_tokens", "Tokens that the KV caches may hold.", c.capacity_tokens),
        ):
            yield GaugeMetricFamily(f"tandem_cloud_{name}", what, value)
