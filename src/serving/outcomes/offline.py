"""Runs a policy without times: no hardware, no links, every piece of work takes one tick."""

from collections.abc import Sequence
from dataclasses import replace

from serving.deployment.queries import LoadedModels, Query
from serving.drivers.simulator import ComputeResource, Simulator
from serving.hardware.executor import DeviceExecutor, Engine
from serving.messages import Outcome, RequestArrived, Work
from serving.metrics.recorder import Recorder, SessionRecord
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.placement import DEVICE_TIER
from serving.progress import Progress

TICK_S = 1.0
CONCURRENT_SESSIONS = 8
"""Concurrent sessions: enough to fill a batch, independent of the workload's number of devices."""
BATCHED_SESSIONS = 16
"""Concurrent sessions on one device that drafts for all of them in one forward."""


class UntimedExecutor:
    """An executor whose work takes one tick."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def execute(self, work: Work) -> tuple[Outcome, float]:
        return self._engine.execute(work)[0], TICK_S

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)


def run_untimed(
    policy: Policy,
    models: LoadedModels,
    queries: Sequence[Query],
    seed: int,
    progress: Progress,
    timed_layers: int | None = None,
    batch_drafts: bool = False,
) -> dict[str, SessionRecord]:
    """The records of all queries, run on a few devices. The target is split like a model of `timed_layers` layers;
    None: of as many as it has.

    With `batch_drafts` there is one device, which drafts for all its sessions in one forward: the same decisions, up to
    rounding, in a fraction of the time.
    """
    num_devices, concurrency = (1, BATCHED_SESSIONS) if batch_drafts else (CONCURRENT_SESSIONS, 1)
    if batch_drafts:
        policy = replace(policy, batch_drafts=True)
    names = [f"device-{i}" for i in range(num_devices)]
    hops = policy.placement.hops(models.cloud_layers, timed_layers or models.cloud_layers)
    tiers = {tier: (f"{tier}-0",) for tier in dict.fromkeys(hop.node for hop in hops if hop.node != DEVICE_TIER)}
    recorder, ended = Recorder(names), iter(range(1, len(queries) + 1))
    simulator = Simulator([recorder])

    def text(token: int) -> str:
        return models.tokenizer.token_text(token)

    for (node,) in tiers.values():
        simulator.add(
            node, Worker(node, policy, tiers, token_text=text), ComputeResource(UntimedExecutor(models.cloud))
        )
    for name in names:
        chip = ComputeResource(DeviceExecutor(UntimedExecutor(models.device), UntimedExecutor(models.device_target)))
        device = Device(name, policy, hops, tiers, seed, max_concurrency=concurrency, token_text=text)
        simulator.add(name, device, chip)
    for i, query in enumerate(queries):
        simulator.post(0.0, names[i % num_devices], RequestArrived(query.request))
    simulator.on_session_end(lambda _session, _now: progress(next(ended), len(queries), ""))
    simulator.run()
    return recorder.records
