"""How many devices a cloud carries under one policy: a search for each seed, and what an answer takes at that load."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.drivers.observer import Observer
from serving.metrics.recorder import Recorder
from serving.outcomes.outcomes import OutcomeSource
from serving.studies.capacity.load_test import LoadTestResult, in_each_class, run_load_test, simulate_load
from serving.studies.capacity.search import CapacityResult, CapacitySearch, search_capacity
from serving.studies.capacity.spending import AnswerSpending, spending_of
from serving.workload.slo import SloClass


@dataclass(frozen=True)
class SeedCapacity:
    """One seed: the capacity (None: any number, no cloud is asked), and the load at it, or of a lone device at 0."""

    capacity: float | None
    devices: int
    """The number of devices at which the rest was measured: the capacity rounded down, at least one."""
    violations: Mapping[str, float]
    """The share of late answers of each SLO class."""
    goodput_tokens_per_s: float
    """Tokens that all devices get."""
    spending: AnswerSpending | None
    """None: no answer was completed, so that all of them are late."""


@dataclass(frozen=True)
class PolicyCapacity:
    """The capacity of one cloud under one policy.

    low, high   95 % interval over the seeds; None with one seed, and where any number is carried
    bounded     True if the search stopped at its most devices under one seed at least
    """

    by_seed: Mapping[int, SeedCapacity]
    low: float | None
    high: float | None
    bounded: bool
    epsilon: float

    @property
    def devices(self) -> float | None:
        """The mean over the seeds; None: any number."""
        known = [one.capacity for one in self.by_seed.values() if one.capacity is not None]
        return fmean(known) if known else None

    @property
    def all_bounded(self) -> bool:
        """True if the search stopped at its most devices under every seed."""
        return self.bounded and len({one.capacity for one in self.by_seed.values()}) == 1

    @property
    def spending(self) -> list[AnswerSpending]:
        """What answers take, of the seeds under which one was completed."""
        return [one.spending for one in self.by_seed.values() if one.spending]

    def why_none(self, slo: Sequence[SloClass]) -> str:
        """What a lone device lacks, for a capacity below 1; else empty."""
        if self.devices is None or self.devices >= 1:
            return ""
        late, spent = fmean(max(one.violations.values()) for one in self.by_seed.values()), self.spending
        reached = "none of them ended in the time that the promise gives it" if not spent else (
            f"they reach {fmean(one.tokens_per_s for one in spent):.3g} tokens/s, the first token after "
            f"{fmean(one.ttft_s for one in spent):.3g} s"
        )  # fmt: skip
        return (
            f"a lone device: {late:.0%} of its answers are late, {self.epsilon:.0%} may be; {reached}; "
            f"promised: {describe_slo(slo)}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "PolicyCapacity":
        """From what `to_dict` made, after JSON."""
        seeds = {
            int(seed): SeedCapacity(**one | {"spending": one["spending"] and AnswerSpending(**one["spending"])})
            for seed, one in found["by_seed"].items()
        }
        return cls(**{**found, "by_seed": seeds})


def describe_slo(classes: Sequence[SloClass]) -> str:
    """The promises, as in `4 tokens/s, TTFT 1 s`; with several classes each with its share."""
    shares = [f"{one.share:.0%} of the devices " if len(classes) > 1 else "" for one in classes]
    begins = [f", TTFT {one.ttft_s:g} s" if one.ttft_s else "" for one in classes]
    return "; ".join(
        f"{share}{one.tokens_per_s:g} tokens/s{begin}"
        for share, one, begin in zip(shares, classes, begins, strict=True)
    )


def find_policy_capacity(setup: Setup, outcomes: OutcomeSource, search: CapacitySearch) -> PolicyCapacity:
    """The capacity of the setup's cloud under its policy, with its SLO classes in their shares.

    A policy that asks no cloud is tried with one device of each class: it carries any number, or none.

    Raises ValueError for a search that counts late rounds: what is measured at the capacity is of answers. Passes
    through what a load test raises.
    """
    if search.count_late != "answers":
        raise ValueError(f"search.count_late is {search.count_late}; what one policy's cloud carries counts answers")
    if not setup.uses_target:
        return _without_cloud(setup, outcomes, search)

    def evaluate(devices: int, seed: int) -> LoadTestResult:
        return run_load_test(setup, outcomes, search, devices, seed, search.max_late_share)

    slowest = min(one.tokens_per_s for one in setup.workload.slo)
    found = search_capacity(evaluate, search, slowest)
    whole = {seed: most if most >= 1 else 0.0 for seed, most in found.by_seed.items()}  # below 1 a lone device is late
    low, high = CapacityResult(whole).interval or (None, None)
    seeds = {seed: _measure(setup, outcomes, search, seed, most) for seed, most in whole.items()}
    return PolicyCapacity(seeds, low, high, found.hit_max_devices, search.epsilon)


def _without_cloud(setup: Setup, outcomes: OutcomeSource, search: CapacitySearch) -> PolicyCapacity:
    alone = {seed: _measure_alone(setup, outcomes, search, seed) for seed in search.seeds}
    late = fmean(max(one.violations.values()) for one in alone.values())
    if late <= search.epsilon:
        return PolicyCapacity(alone, None, None, False, search.epsilon)
    none = {seed: replace(one, capacity=0.0) for seed, one in alone.items()}
    low, high = CapacityResult(dict.fromkeys(none, 0.0)).interval or (None, None)
    return PolicyCapacity(none, low, high, False, search.epsilon)


def _measure_alone(setup: Setup, outcomes: OutcomeSource, search: CapacitySearch, seed: int) -> SeedCapacity:
    """A lone device of each SLO class: all their late answers, and the rest of the class that has most of them."""
    found = [_measure(own, outcomes, search, seed, None) for own in in_each_class(setup)]
    worst = max(found, key=lambda one: max(one.violations.values()))
    return replace(worst, violations={name: late for one in found for name, late in one.violations.items()})


def _measure(
    setup: Setup, outcomes: OutcomeSource, search: CapacitySearch, seed: int, capacity: float | None
) -> SeedCapacity:
    """The load of as many devices as the capacity, at least one."""
    devices, recorders = max(1, int(capacity or 1)), list[Recorder]()

    def observe(topology: Topology, begin_s: float, end_s: float) -> Sequence[Observer]:  # noqa: ARG001
        recorders[:] = [Recorder(topology.devices)]
        return recorders

    run = simulate_load(setup, outcomes, search, devices, seed, observe=observe)
    answers, violated, _ = run.evaluator.counts(run.observer, run.stopped_s)
    late = {name: violated[name] / asked for name, asked in answers.items()}
    window = run.observer.begin_s, run.observer.end_s
    return SeedCapacity(
        capacity=capacity,
        devices=devices,
        violations=late or {one.name: 1.0 for one in setup.workload.slo},  # none was asked: the one before never ended
        goodput_tokens_per_s=run.observer.counts.emitted / run.window_s,
        spending=spending_of(list(recorders[0].records.values()), run.topology, *window),
    )
