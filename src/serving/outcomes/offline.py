"""Runs a policy for what it decides, not for how long it takes: no hardware, no links, every piece of work a tick."""

from collections.abc import Sequence

from serving.deployment.queries import Models, Query
from serving.drivers.simulator import Chip, Simulator
from serving.hardware.timed_executor import Engine, Halves
from serving.messages import Begin, Outcome, Work
from serving.metrics.recorder import Record, Recorder
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.placement import HERE
from serving.progress import Progress

TICK_S = 1.0
CONCURRENT = 8
"""Sessions at a time: enough to fill a batch, whatever the workload's number of devices."""


class Untimed:
    """An executor that takes a tick for everything."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def execute(self, work: Work) -> tuple[Outcome, float]:
        return self._engine.execute(work)[0], TICK_S

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)


def play(policy: Policy, models: Models, queries: Sequence[Query], seed: int, progress: Progress) -> dict[str, Record]:
    """The records of all queries, dealt to a few devices that never wait for anything but their cloud."""
    names = [f"device-{i}" for i in range(CONCURRENT)]
    hops = policy.placement.route(models.cloud_layers, models.cloud_layers)
    tiers = {tier: (f"{tier}-0",) for tier in dict.fromkeys(hop.node for hop in hops if hop.node != HERE)}
    recorder, ended = Recorder(names), iter(range(1, len(queries) + 1))
    simulator = Simulator([recorder])
    for (node,) in tiers.values():
        simulator.add(node, Worker(node, policy, tiers), Chip(Untimed(models.cloud)))
    for name in names:
        chip = Chip(Halves(Untimed(models.device), Untimed(models.here)))
        simulator.add(name, Device(name, policy, hops, tiers, seed), chip)
    for i, query in enumerate(queries):
        simulator.post(0.0, names[i % CONCURRENT], Begin(query.call))
    simulator.on_end(lambda _session, _now: progress(next(ended), len(queries), ""))
    simulator.run()
    return recorder.records
