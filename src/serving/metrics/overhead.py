"""The time of decisions against that of computation, in wall seconds of this machine."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter

from serving.deployment.wiring import Driver
from serving.drivers.simulator import ComputeResource
from serving.hardware.executor import Executor
from serving.messages import Command, Event, Node, Outcome, Work
from serving.network.channel import LinkDirection


class OverheadTimer:
    """A proxy of a driver that times every node and chip added through it.

    Decisions are a node's `handle`: the policy's slots, bookkeeping, queues and batches. Computation is a chip's
    `execute`, including scores.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.decision_s: dict[str, float] = defaultdict(float)
        self.compute_s: dict[str, float] = defaultdict(float)

    def add(self, name: str, node: Node, chip: ComputeResource) -> None:
        timed = replace(chip, executor=_TimedExecutor(name, chip.executor, self.compute_s))
        self._driver.add(name, _TimedNode(name, node, self.decision_s), timed)

    def connect(self, a: str, b: str, wire: LinkDirection) -> None:
        self._driver.connect(a, b, wire)

    def connect_access(self, name: str, outgoing: LinkDirection, incoming: LinkDirection) -> None:
        self._driver.connect_access(name, outgoing, incoming)

    def post(self, at: float, node: str, event: Event) -> None:
        self._driver.post(at, node, event)

    def metrics(self, devices: Iterable[str], workers: Sequence[str], tokens: int) -> dict[str, float]:
        """`device_ms_per_token`: decisions of all devices per token of text. `cloud_share`: decisions over computation
        in the cloud; absent if the cloud computed nothing.
        """
        found = {"device_ms_per_token": 1e3 * sum(self.decision_s[name] for name in devices) / max(1, tokens)}
        compute_s = sum(self.compute_s[name] for name in workers)
        if compute_s:
            found["cloud_share"] = sum(self.decision_s[name] for name in workers) / compute_s
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
        self.drop, self.move, self.copy = executor.drop, executor.move, executor.copy

    def execute(self, work: Work) -> tuple[Outcome, float]:
        began = perf_counter()
        done = self._executor.execute(work)
        self._spent_s[self._name] += perf_counter() - began
        return done
