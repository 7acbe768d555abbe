"""What Synera's decisions cost on this machine: per token on a device, and beside the cloud's forwards, by budget.

Nodes, slots and engine are the real ones on the embedded pair, on virtual time, so that every round decides alike; what
is timed is the wall clock around each `handle` and each `execute`. The paper (section 6.7): below 0.5 ms a token on the
device for P_conf and P_imp, about 25 % at most beside the cloud's computing.

The scores are computed inside the drafter's forwards, not in a node: they are timed apart, the same four tokens drafted
with and without them in turn.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from serving.deployment.model_loading import load_models, make_queries
from serving.deployment.queries import LoadedModels, Query
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
from serving.drivers.simulator import Simulator
from serving.hardware.executor import Engine
from serving.messages import DraftStopRule, DraftWork
from serving.metrics.overhead import OverheadTimer
from serving.metrics.recorder import Recorder
from serving.runtimes.clients import WorkloadClients

BUDGETS = (0.0, 0.2, 0.4, 0.8)
PROMPTS, ROUNDS = 40, 5
SCORED_ROUNDS, DRAFT = 12, 4
LIMIT_MS, LIMIT_SHARE = 0.5, 0.25
PROBES: dict[str, tuple[str, ...]] = {
    "no scores": (), "confidence": ("confidence",), "importance": ("importance",),
    "both": ("confidence", "importance"),
}  # fmt: skip


@dataclass(frozen=True)
class OverheadRound:
    """One workload served: milliseconds per token, microseconds per batch, and ratios."""

    tokens: int
    offloaded_share: float
    device_ms: float
    forward_ms: float
    """The device's own computing per token, scores included."""
    batches: int
    batch_us: float
    cloud_share: float
    named_hardware_share: float
    """Beside the time that the same forwards take on the named hardware."""


class WorkerBatchCounter:
    """An observer that counts forwards, and the seconds that they take on the named hardware."""

    def __init__(self, workers: Sequence[str]) -> None:
        self._workers, self.count, self.named_s = workers, 0, 0.0

    def event_handled(self, *_: object) -> None: ...

    def message_sent(self, *_: object) -> None: ...

    def work_done(self, node: str, work: object, outcome: object, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if node in self._workers:
            self.count += 1
            self.named_s += end_s - begin_s


def synera_setup(budget: float, outputs: str = "outputs") -> Setup:
    """The conf files' own Synera at a budget, with the artifacts that are there."""
    from pipeline import api
    from pipeline.artifacts.store import Store
    from pipeline.config.build import construct

    words = (
        "policy=synera",
        f"policy.offload.budget={budget}",
        f"workload.num_prompts={PROMPTS}",
        f"outputs={outputs}",
    )
    stages = {stage.name: stage for stage in api.stages(words)}
    store = Store(Path(outputs).absolute() / "artifacts")
    made: Setup = construct(stages["serve"].args["setup"], lambda name: store.path(stages[name]), "setup")
    return made


def serve_round(setup: Setup, models: LoadedModels, asked: Sequence[Query]) -> OverheadRound:
    """As the runtime `emulated` sets the stage, with a stopwatch before it."""
    topology = Topology(setup, models.cloud_layers)
    users, recorder, batches = (
        WorkloadClients(asked, topology.devices),
        Recorder(topology.devices),
        WorkerBatchCounter(topology.workers),
    )
    simulator = Simulator([recorder, batches])
    overhead = OverheadTimer(simulator)
    add_nodes(overhead, topology, ChipFactory(topology, models, asked), (*topology.workers, *topology.devices))
    connect_nodes(simulator, topology)
    simulator.on_session_end(partial(users.on_session_end, post=simulator.post))
    users.start(simulator.post)
    simulator.run()
    records = recorder.records.values()
    tokens, chunks = sum(len(r.tokens) for r in records), sum(r.num_decisions for r in records)
    found = overhead.metrics(topology.devices, topology.workers, tokens)
    decided_s = sum(overhead.decision_s[name] for name in topology.workers)
    forward_s = sum(overhead.compute_s[name] for name in topology.devices)
    return OverheadRound(
        tokens=tokens,
        offloaded_share=sum(r.num_offloaded for r in records) / max(1, chunks),
        device_ms=found["device_ms_per_token"],
        forward_ms=1e3 * forward_s / tokens,
        batches=batches.count,
        batch_us=1e6 * decided_s / max(1, batches.count),
        cloud_share=found.get("cloud_share", 0.0),
        named_hardware_share=decided_s / batches.named_s if batches.count else 0.0,
    )


def time_scores(engine: Engine, asked: Sequence[Query]) -> dict[str, list[float]]:
    """Milliseconds per drafted token of each choice of scores, for each prompt the fastest of the rounds: other
    work on the machine can only make one slower.
    """
    found: dict[str, list[float]] = {name: [] for name in PROBES}
    for query in asked:
        prompt, session = query.request.prompt, query.request.session
        engine.execute(DraftWork(session, 0, prompt[:-1], DraftStopRule(0)))
        fastest = dict.fromkeys(PROBES, float("inf"))
        for round_ in range(SCORED_ROUNDS):
            for name in sorted(PROBES, key=partial(order_in_round, round_)):
                fastest[name] = min(fastest[name], drafted_ms(engine, session, prompt, PROBES[name]))
        for name, ms in fastest.items():
            found[name].append(ms)
        engine.drop(session, None)
    return found


def order_in_round(round_: int, name: str) -> int:
    """Another choice goes first in every round."""
    return (list(PROBES).index(name) + round_) % len(PROBES)


def drafted_ms(engine: Engine, session: str, prompt: Sequence[int], probes: tuple[str, ...]) -> float:
    work = DraftWork(session, len(prompt) - 1, tuple(prompt[-1:]), DraftStopRule(DRAFT), requested_scores=probes)
    began = time.perf_counter()
    engine.execute(work)
    return 1e3 * (time.perf_counter() - began) / DRAFT


def format_range(values: Sequence[float], digits: int = 3) -> str:
    ordered = sorted(values)
    return f"{median(ordered):.{digits}f} ({ordered[0]:.{digits}f} to {ordered[-1]:.{digits}f})"


def format_percent_range(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{median(ordered):.1%} ({ordered[0]:.1%} to {ordered[-1]:.1%})"


def main() -> bool:
    """Rounds of all budgets in turn, after one that is not counted."""
    setups = {budget: synera_setup(budget) for budget in BUDGETS}
    first = setups[BUDGETS[0]]
    models = load_models(first.pair.device, first.pair.cloud)
    asked = make_queries(first.workload, first.decoding, first.seed, first.num_devices, models.tokenizer)
    rounds: dict[float, list[OverheadRound]] = {budget: [] for budget in BUDGETS}
    for _ in range(ROUNDS + 1):
        for budget, setup in setups.items():
            rounds[budget].append(serve_round(setup, models, asked))
    passed = [print_round(budget, found[1:]) for budget, found in rounds.items()]
    print_scores(time_scores(models.device, asked))
    return all(passed)


def print_round(budget: float, found: Sequence[OverheadRound]) -> bool:
    one, device_ms, share = found[0], [r.device_ms for r in found], [r.cloud_share for r in found]
    print(f"budget {budget}: {one.offloaded_share:.0%} of chunks asked, {one.tokens} tokens, {one.batches} batches")
    forward_ms = format_range([r.forward_ms for r in found], 2)
    print(f"  device  {format_range(device_ms)} ms a token, limit {LIMIT_MS}; its forwards {forward_ms} ms a token")
    if one.batches:
        batch_us, named = (
            format_range([r.batch_us for r in found], 0),
            format_percent_range([r.named_hardware_share for r in found]),
        )
        print(
            f"  cloud   {batch_us} us a batch: {format_percent_range(share)} beside its forwards here, "
            f"limit {LIMIT_SHARE:.0%}; {named} beside those of the named hardware"
        )
    return median(device_ms) <= LIMIT_MS and median(share) <= LIMIT_SHARE


def print_scores(found: dict[str, list[float]]) -> None:
    print(f"drafting without scores: {format_range(found['no scores'])} ms a token")
    for name in list(PROBES)[1:]:
        extra = [b - a for a, b in zip(found["no scores"], found[name], strict=True)]
        quarter = sorted(extra)[len(extra) // 4], sorted(extra)[3 * len(extra) // 4]
        print(f"  {name}: {median(extra):+.3f} ms a token (middle half {quarter[0]:+.3f} to {quarter[1]:+.3f}), "
              f"{median(extra) / median(found['no scores']):+.0%}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
