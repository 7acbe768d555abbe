"""Runs a policy without times: no hardware, no links, every piece of work takes one tick."""

from collections.abc import Sequence
from pathlib import Path

from serving.deployment.queries import LoadedModels, Query
from serving.drivers.simulator import ComputeResource, Simulator
from serving.hardware.executor import DraftPoolingEngine, Engine, TimedDraft
from serving.hardware.timed_executor import DeviceExecutor
from serving.messages import DraftWork, Outcome, RequestArrived, Work
from serving.metrics.recorder import Recorder, SessionRecord
from serving.nodes.device import Device, device_names
from serving.nodes.worker import Worker
from serving.outcomes.kept_sessions import KeptSessions
from serving.policy.policy import Policy
from serving.policy.slots.placement import DEVICE_TIER
from serving.progress import Progress

TICK_S = 1.0
CONCURRENT_SESSIONS = 16
"""Concurrent sessions: enough to fill a batch, independent of the workload's number of devices."""


class UntimedExecutor:
    """An executor whose work takes one tick."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def execute(self, work: Work) -> tuple[Outcome, float]:
        return self._engine.execute(work)[0], TICK_S

    def begin(self, work: DraftWork) -> TimedDraft | None:
        begun = self._engine.begin(work) if isinstance(self._engine, DraftPoolingEngine) else None
        return TimedDraft(begun, lambda _loads: TICK_S, lambda outcome: outcome) if begun else None

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)

    def move(self, session: str, to: str) -> None:
        self._engine.move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:
        self._engine.copy(session, to, length)


def run_untimed(
    policy: Policy,
    models: LoadedModels,
    queries: Sequence[Query],
    seed: int,
    progress: Progress,
    timed_layers: int | None = None,
    kept: Path | None = None,
) -> dict[str, SessionRecord]:
    """The records of all queries, run on a few devices. The target is split like a model of `timed_layers` layers;
    None: of as many as it has.

    Sessions that have ended are added to the file `kept`, and those that are in it are not run again: of them the
    records have no times. What is run then is batched otherwise than without an interruption.
    """
    with KeptSessions(kept) as ended:
        left = [query for query in queries if query.request.session not in ended.records]
        simulator, recorder = _simulation(policy, models, left, seed, timed_layers)
        done = iter(range(len(ended.records) + 1, len(queries) + 1))

        def session_ended(session: str, _now: float) -> None:
            ended.keep(recorder.records[session])
            progress(next(done), len(queries), "")

        simulator.on_session_end(session_ended)
        simulator.run()
        return ended.records | recorder.records


def _simulation(
    policy: Policy, models: LoadedModels, queries: Sequence[Query], seed: int, timed_layers: int | None
) -> tuple[Simulator, Recorder]:
    """The nodes, with the queries that are to come."""
    names = device_names(CONCURRENT_SESSIONS)
    hops = policy.placement.hops(models.cloud_layers, timed_layers or models.cloud_layers)
    tiers = {tier: (f"{tier}-0",) for tier in dict.fromkeys(hop.node for hop in hops if hop.node != DEVICE_TIER)}
    recorder = Recorder(names)
    simulator = Simulator([recorder])

    def text(token: int) -> str:
        return models.tokenizer.token_text(token)

    for (node,) in tiers.values():
        simulator.add(
            node, Worker(node, policy, tiers, token_text=text), ComputeResource(UntimedExecutor(models.cloud))
        )
    for name in names:
        chip = ComputeResource(DeviceExecutor(UntimedExecutor(models.device), UntimedExecutor(models.device_target)))
        device = Device(name, policy, hops, tiers, seed, token_text=text)
        simulator.add(name, device, chip)
    for i, query in enumerate(queries):
        simulator.post(0.0, names[i % len(names)], RequestArrived(query.request))
    return simulator, recorder
