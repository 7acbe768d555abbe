"""A load test: a simulated steady state of a number of devices, measured in a window of time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import ceil, isfinite
from statistics import fmean, median
from time import perf_counter
from typing import Any

from serving.core.kv_accounting import MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
from serving.drivers.observer import Observer
from serving.drivers.simulator import Simulator
from serving.hardware.estimator import Estimator
from serving.messages import INF
from serving.outcomes.outcomes import OutcomeEngines, OutcomeSource
from serving.policy.slots.scheduler import ScheduledBatch, Scheduler
from serving.studies.capacity.busy_time import BusyTimeObserver
from serving.studies.capacity.offered_load import (
    MAX_TOKENS_PER_S,
    ClosedLoopClients,
    OfferedLoad,
    OutOfQueriesError,
    closed_loop,
    make_load,
)
from serving.studies.capacity.slo_evaluation import (
    CountLate,
    LoadObserver,
    SloEvaluator,
    SpeedFrom,
    VerificationObserver,
    lateness_shares,
)


class TimedScheduler:
    """Times the decisions of `scheduler`, in wall seconds of this machine.

    Its other attributes are those of `scheduler`: a topology reads its limits.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._pick = scheduler, scheduler.pick
        self.decision_times_s: list[float] = []
        self.max_queue_len = 0
        """The most requests in the queue of one decision."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def pick(
        self, queue: Sequence[QueuedRequest], now: float, memory_budget: MemoryBudget, estimator: Estimator
    ) -> ScheduledBatch | float:
        began = perf_counter()
        picked = self._pick(queue, now, memory_budget, estimator)
        self.decision_times_s.append(perf_counter() - began)
        self.max_queue_len = max(self.max_queue_len, len(queue))
        return picked

    def metrics(self) -> dict[str, float]:
        """Milliseconds per decision; empty without decisions."""
        if not self.decision_times_s:
            return {}
        return {
            "decision_ms": 1e3 * fmean(self.decision_times_s),
            "decision_ms_median": 1e3 * median(self.decision_times_s),
            "decision_ms_max": 1e3 * max(self.decision_times_s),
            "queue_len_max": float(self.max_queue_len),
        }


@dataclass(frozen=True, kw_only=True)
class LoadTest:
    """The measurement of a steady state, in simulated seconds.

    Requests that arrive in the window count. The window is long enough for about `answers` requests if all answers just
    meet their SLO. Warm-up and window last at least as long as an answer may take and its user thinks, so that slow
    devices count, too. The run ends when every counted answer is known to be in time or late.
    """

    warmup_s: float = 20.0
    """The minimum."""
    window_s: float = 20.0
    """The minimum."""
    answers: int = 120
    stagger_s: float = 5.0
    """The devices start within this time, or within the think time if that is longer."""
    speed_from: SpeedFrom = "asked"
    """Tokens per second count from the arrival of the request, queueing and verification included (WISP, section 5.3),
    or from the first token."""
    attribution: bool = False
    """True if every verification is recorded with the cause of its lateness."""
    busy_time: bool = False
    """True if the cloud's busy time is divided by what the chips do."""

    def __post_init__(self) -> None:
        for name in ("warmup_s", "window_s", "stagger_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0) or (name == "window_s" and not value):
                raise ValueError(f"{name} is {value}; give seconds, and more than 0 for the window")
        if self.answers < 1:
            raise ValueError(f"answers is {self.answers}; a rate needs 1 at least")
        if self.stagger_s > self.warmup_s:
            raise ValueError(f"stagger_s={self.stagger_s:g} is longer than warmup_s={self.warmup_s:g}; set it lower")

    def window_for(self, devices: int, turn_s: float) -> float:
        """Seconds of the window if a device sends a request every `turn_s` at the latest."""
        return max(self.window_s, turn_s, self.answers * turn_s / devices)


@dataclass(frozen=True)
class LoadTestResult:
    """The result of a load test; `answers`, `violations`, `rounds` and `late_rounds` are counts by SLO class."""

    num_devices: int
    seed: int
    answers: dict[str, int]
    violations: dict[str, int]
    speeds: dict[str, float]
    """Mean tokens per second of complete answers, by class."""
    metrics: dict[str, float]
    rounds: dict[str, int] = field(default_factory=dict)
    late_rounds: dict[str, int] = field(default_factory=dict)

    @property
    def violation_rate(self) -> float:
        """The share of answers that missed their SLO; 1 without answers."""
        return self.late_share("answers")

    def late_share(self, of: CountLate) -> float:
        """The share of answers, or of rounds, that missed their SLO; 1 without any."""
        counted, late = self.num_counted(of)
        return late / counted if counted else 1.0

    def num_counted(self, of: CountLate) -> tuple[int, int]:
        """All answers, or rounds, and those of them that missed their SLO."""
        counted, late = (self.answers, self.violations) if of == "answers" else (self.rounds, self.late_rounds)
        return sum(counted.values()), sum(late.values())

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


Observe = Callable[[Topology, float, float], Sequence[Observer]]
"""(topology, begin_s, end_s) -> further observers of a load test whose window is that time. Called for each try of a
run: the last one counts.
"""


@dataclass(frozen=True)
class LoadRun:
    """A simulated load test with what was observed in its window of `window_s` seconds."""

    topology: Topology
    observer: LoadObserver
    evaluator: SloEvaluator
    window_s: float
    stopped_s: float = INF
    """When enough answers were known to be late or in time; INF: the run lasted as long as any answer may."""


def in_each_class(setup: Setup) -> Iterator[Setup]:
    """The setup once for each of its SLO classes, with all devices in that class.

    Raises ValueError without classes.
    """
    check_has_slo(setup)
    for one in setup.workload.slo:
        yield replace(setup, workload=replace(setup.workload, slo=(replace(one, share=1.0),)))


def check_has_slo(setup: Setup) -> None:
    """Raises ValueError for a workload without SLO classes."""
    if not setup.workload.slo:
        raise ValueError("no SLO class says how fast answers should be; set workload.slo, or add +slo=mixed")


def run_load_test(
    setup: Setup, outcomes: OutcomeSource, load_test: LoadTest, num_devices: int, seed: int, max_late_share: float = 1.0
) -> LoadTestResult:
    """Simulates `num_devices` devices; ends early when more than `max_late_share` of the answers are late, and counts
    those that are known to be.

    Raises ValueError for a workload without SLO classes, or one that is no closed loop.
    """
    scheduler = TimedScheduler(setup.policy.scheduler)
    setup = replace(setup, policy=replace(setup.policy, scheduler=scheduler))
    parts: list[VerificationObserver | BusyTimeObserver] = []

    def observe(topology: Topology, begin_s: float, end_s: float) -> Sequence[Observer]:
        parts.clear()
        if load_test.attribution:
            parts.append(VerificationObserver(topology.workers, begin_s, end_s))
        if load_test.busy_time:
            estimators = {node: topology.estimator(node) for node in topology.workers}
            parts.append(BusyTimeObserver(estimators, begin_s, end_s))
        return parts

    run = simulate_load(setup, outcomes, load_test, num_devices, seed, max_late_share, observe)
    metrics = _window_metrics(run.observer, run.window_s, num_devices) | scheduler.metrics()
    for part in parts:
        if isinstance(part, VerificationObserver):
            metrics |= lateness_shares(part.verifications)
        else:
            metrics |= part.metrics(run.observer.counts.emitted, len(run.topology.workers))
    answers = run.evaluator.counts(run.observer, run.stopped_s)
    return LoadTestResult(num_devices, seed, *answers, metrics, *run.evaluator.round_counts(run.observer))


def simulate_load(
    setup: Setup,
    outcomes: OutcomeSource,
    load_test: LoadTest,
    num_devices: int,
    seed: int,
    max_late_share: float = 1.0,
    observe: Observe = lambda *_: (),
) -> LoadRun:
    """Simulates `num_devices` devices until each answer of the window is known to be in time or late.

    Raises ValueError for a workload without SLO classes, one that is no closed loop, outages, and devices that are
    answered faster than any load is prepared for.
    """
    check_has_slo(setup)
    setup.check_undisturbed()
    setup = replace(setup, seed=seed, workload=replace(setup.workload, devices=num_devices))
    slowest_s = max(setup.workload.max_new_tokens / one.tokens_per_s for one in setup.workload.slo)
    turn_s = slowest_s + closed_loop(setup).think_s
    warmup_s, window_s = max(load_test.warmup_s, turn_s), load_test.window_for(num_devices, turn_s)
    ends_s = warmup_s + window_s

    def run(max_tokens_per_s: float) -> LoadRun:
        stagger_s = load_test.stagger_s
        load = make_load(setup, outcomes, num_devices, ends_s + slowest_s, stagger_s, max_tokens_per_s)
        engines = outcomes.open(load.queries, setup.policy, seed)
        topology = Topology(setup, engines.cloud_layers, tokenizer=engines.tokenizer)
        observer = LoadObserver(warmup_s, ends_s)
        simulator = Simulator([observer, *observe(topology, warmup_s, ends_s)])
        _wire_simulator(simulator, topology, engines, load)
        evaluator = SloEvaluator(load, load_test.speed_from)
        simulator.run(until=ends_s)
        for second in range(1, ceil(slowest_s) + 1):
            if evaluator.is_decided(observer, simulator.now, max_late_share):
                return LoadRun(topology, observer, evaluator, window_s, simulator.now)
            simulator.run(until=ends_s + min(second, slowest_s))
        return LoadRun(topology, observer, evaluator, window_s)

    *bounds, highest = MAX_TOKENS_PER_S
    for bound in bounds:
        with suppress(OutOfQueriesError):
            return run(bound)
    return run(highest)


def _wire_simulator(simulator: Simulator, topology: Topology, engines: OutcomeEngines, load: OfferedLoad) -> None:
    """Adds nodes and links to the simulator, and starts the devices."""
    add_nodes(simulator, topology, ChipFactory(topology, engines, load.queries), (*topology.workers, *topology.devices))
    connect_nodes(simulator, topology)
    simulator.on_session_end(ClosedLoopClients(load, topology.devices, simulator.post).on_session_end)


def _window_metrics(observer: LoadObserver, window_s: float, devices: int) -> dict[str, float]:
    """Rates over the window.

    `wasted_tokens_per_s` are the rejected drafts of a device (WISP, Eq. 7), `dropped_share` the drafts that the cloud
    did not judge: those that a stop rule dropped, or that were drafted ahead for another verdict. They are left out
    where no draft model writes any.
    """
    w = observer.counts
    found = {
        "goodput_tokens_per_s": w.emitted / window_s,
        "device_tokens_per_s": w.emitted / window_s / devices,
        "verifications_per_s": w.verifications / window_s,
    }
    if w.drafted and w.verifications:
        found |= {
            "wasted_tokens_per_s": (w.drafts_verified - w.drafts_accepted) / window_s / devices,
            "wasted_share": (w.drafts_verified - w.drafts_accepted) / w.drafted,
            "dropped_share": max(0.0, 1 - w.drafts_verified / w.drafted),
        }
    if w.verifications:
        found |= {
            "acceptance_rate": w.drafts_accepted / w.drafts_verified,
            "drafts_per_verification": w.drafts_verified / w.verifications,
        }
    return found
