"""What deciding costs beside computing, in wall seconds of this machine."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import perf_counter

from serving.deployment.wiring import Driver
from serving.drivers.simulator import ComputeResource, LinkDirection
from serving.hardware.executor import Executor
from serving.messages import Command, Event, Node, Outcome, Work


class OverheadTimer:
    """Stands before a driver while its stage is set: every node and chip added through it is timed.

    A node's time is all of `handle`: the policy's slots, bookkeeping, queues and batches. A chip's is `execute`, scores
    included.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.decision_s: dict[str, float] = defaultdict(float)
        self.compute_s: dict[str, float] = defaultdict(float)

    def add(self, name: str, node: Node, chip: ComputeResource) -> None:
        executor = _TimedExecutor(name, chip.executor, self.compute_s)
        self._driver.add(name, _TimedNode(name, node, self.decision_s), ComputeResource(executor, chip.processor))

    def connect(self, a: str, b: str, wire: LinkDirection) -> None:
        self._driver.connect(a, b, wire)

    def post(self, at: float, node: str, event: Event) -> None:
        self._driver.post(at, node, event)

    def metrics(self, devices: Iterable[str], workers: Sequence[str], tokens: int) -> dict[str, float]:
        """`device_ms_per_token`: of the text, all devices together; `cloud_share`: of deciding beside computing there,
        absent without a cloud that computed.
        """
        found = {"device_ms_per_token": 1e3 * sum(self.decision_s[name] for name in devices) / max(1, tokens)}
        computed_s = sum(self.compute_s[name] for name in workers)
        if computed_s:
            found["cloud_share"] = sum(self.decision_s[name] for name in workers) / computed_s
        return found


class _TimedNode:
    def __init__(self, name: str, node: Node, spent_s: dict[str, float]) -> None:
        self._name, self._handle, self._spent_s = name, node.handle, spent_s

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        began = perf_counter()
        commands = self._handle(event, now)
        self._spent_s[self._name] += perf_counter() - began
        return commands


class _TimedExecutor:
    def __init__(self, name: str, executor: Executor, spent_s: dict[str, float]) -> None:
        self._name, self._executor, self._spent_s = name, executor, spent_s
        self.drop = executor.drop

    def execute(self, work: Work) -> tuple[Outcome, float]:
        began = perf_counter()
        done = self._executor.execute(work)
        self._spent_s[self._name] += perf_counter() - began
        return done
