"""A steady state: so many devices, simulated for a window of time, and what was measured in it.

How long a scheduler decides on each batch, in wall seconds of this machine.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, isfinite
from statistics import fmean, median
from time import perf_counter

from serving.core.kv_accounting import MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
from serving.drivers.simulator import Simulator
from serving.hardware.estimator import Estimator
from serving.outcomes.outcomes import OutcomeEngines, OutcomeSource
from serving.policy.slots.scheduler import ScheduledBatch, Scheduler
from serving.studies.capacity.offered_load import ClosedLoopClients, OfferedLoad, make_load
from serving.studies.capacity.slo_evaluation import (
    LoadObserver,
    SloEvaluator,
    SpeedFrom,
    VerificationObserver,
    lateness_shares,
)


class TimedScheduler:
    """A scheduler whose decisions are timed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._pick = scheduler.pick
        self.decision_times_s: list[float] = []
        self.max_queue_len = 0
        """The most requests that one decision looked at."""

    def pick(
        self, queue: Sequence[QueuedRequest], now: float, memory_budget: MemoryBudget, estimator: Estimator
    ) -> ScheduledBatch | float:
        began = perf_counter()
        picked = self._pick(queue, now, memory_budget, estimator)
        self.decision_times_s.append(perf_counter() - began)
        self.max_queue_len = max(self.max_queue_len, len(queue))
        return picked

    def metrics(self) -> dict[str, float]:
        """Milliseconds a decision; nothing where none was made."""
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
    """How a steady state is measured, in simulated seconds.

    Answers count that are asked within the window, which is so long that about `answers` would be asked were all just
    fast enough. Warm-up and window last as long as an answer may take, at least: else devices that are slow are never
    judged. The run goes on until each of them is known to be in time or late.
    """

    warmup_s: float = 20.0
    """At least so long."""
    window_s: float = 20.0
    """At least so long."""
    answers: int = 120
    stagger_s: float = 5.0
    """Within so many seconds the devices begin."""
    speed_from: SpeedFrom = "asked"
    """Tokens a second of an answer from its question on, queueing and verification included (WISP, section 5.3), or
    from its first token on."""
    attribution: bool = False
    """Is every verification noted, with what made it late?"""

    def __post_init__(self) -> None:
        for name in ("warmup_s", "window_s", "stagger_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0) or (name == "window_s" and not value):
                raise ValueError(f"{name} is {value}; give seconds, and more than 0 for the window")
        if self.answers < 1:
            raise ValueError(f"answers is {self.answers}; a rate needs 1 at least")
        if self.stagger_s > self.warmup_s:
            raise ValueError(f"stagger_s={self.stagger_s:g} is longer than warmup_s={self.warmup_s:g}; set it lower")

    def window_for(self, devices: int, answer_s: float) -> float:
        """The window's seconds, where an answer may take `answer_s`."""
        return max(self.window_s, answer_s, self.answers * answer_s / devices)


@dataclass(frozen=True)
class LoadTestResult:
    """One steady state; `answers` and `violations` are counts of answers by SLO class."""

    num_devices: int
    seed: int
    answers: dict[str, int]
    violations: dict[str, int]
    speeds: dict[str, float]
    """Mean tokens a second of complete answers, by class."""
    metrics: dict[str, float]

    @property
    def violation_rate(self) -> float:
        """The share of answers that were slower than promised; all, where nobody got so far as to ask."""
        asked = sum(self.answers.values())
        return sum(self.violations.values()) / asked if asked else 1.0

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def run_load_test(
    setup: Setup, outcomes: OutcomeSource, load_test: LoadTest, num_devices: int, seed: int, max_late_share: float = 1.0
) -> LoadTestResult:
    """So many devices under one seed; ends early once more than `max_late_share` of the answers are late.

    Raises ValueError for a workload without SLO classes or of another kind than a closed loop.
    """
    if not setup.workload.slo:
        raise ValueError("no SLO class says how fast answers should be; set workload.slo, or add +slo=mixed")
    clocked = TimedScheduler(setup.policy.scheduler)
    workload, policy = replace(setup.workload, devices=num_devices), replace(setup.policy, scheduler=clocked)
    setup = replace(setup, seed=seed, workload=workload, policy=policy)
    slowest_s = max(setup.workload.max_new_tokens / one.tokens_per_s for one in setup.workload.slo)
    warmup_s, window_s = max(load_test.warmup_s, slowest_s), load_test.window_for(num_devices, slowest_s)
    ends_s = warmup_s + window_s
    load = make_load(setup, outcomes, num_devices, ends_s + slowest_s, load_test.stagger_s)
    opened = outcomes.open(load.queries, setup.policy, seed)
    cast, meter = Topology(setup, opened.cloud_layers), LoadObserver(warmup_s, ends_s)
    verifications = VerificationObserver(cast.workers, warmup_s, ends_s)
    simulator = Simulator([meter, verifications] if load_test.attribution else [meter])
    _wire_simulator(simulator, cast, opened, load)
    answered = SloEvaluator(load, load_test.speed_from)
    simulator.run(until=ends_s)
    for second in range(1, ceil(slowest_s) + 1):
        if answered.is_decided(meter, simulator.now, max_late_share):
            break
        simulator.run(until=ends_s + min(second, slowest_s))
    figures = _window_metrics(meter, window_s, num_devices) | clocked.metrics()
    if load_test.attribution:
        figures |= lateness_shares(verifications.verifications)
    return LoadTestResult(num_devices, seed, *answered.counts(meter), figures)


def _wire_simulator(simulator: Simulator, topology: Topology, opened: OutcomeEngines, load: OfferedLoad) -> None:
    """Sets the stage, and lets the devices begin."""
    add_nodes(simulator, topology, ChipFactory(topology, opened, load.queries), (*topology.workers, *topology.devices))
    connect_nodes(simulator, topology)
    simulator.on_session_end(ClosedLoopClients(load, topology.devices, simulator.post).on_session_end)


def _window_metrics(observer: LoadObserver, window_s: float, devices: int) -> dict[str, float]:
    """Rates over the window; `wasted_tokens_per_s` is a device's, drafted in vain (WISP, Eq. 7)."""
    w = observer.counts
    found = {
        "goodput_tokens_per_s": w.emitted / window_s,
        "device_tokens_per_s": w.emitted / window_s / devices,
        "verifications_per_s": w.verifications / window_s,
    }
    if w.verifications:
        found |= {
            "wasted_tokens_per_s": (w.drafted - w.drafts_accepted) / window_s / devices,
            "wasted_share": 1 - w.drafts_accepted / w.drafted,
            "acceptance_rate": w.drafts_accepted / w.drafts_verified,
            "drafts_per_verification": w.drafts_verified / w.verifications,
        }
    return found
