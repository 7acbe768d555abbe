"""A steady state: so many devices, simulated for a window of time, and what was measured in it.

How long a scheduler decides on each batch, in wall seconds of this machine.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, isfinite
from statistics import fmean, median
from time import perf_counter

from serving.core.kv_accounting import Room
from serving.core.queued_request import Item
from serving.deployment.setup import Setup
from serving.deployment.topology import Cast
from serving.deployment.wiring import Chips, link, populate
from serving.drivers.simulator import Simulator
from serving.hardware.estimator import Estimator
from serving.outcomes.outcomes import Opened, Outcomes
from serving.policy.slots.scheduler import Batch, Scheduler
from serving.studies.capacity.offered_load import Load, Loop, made
from serving.studies.capacity.slo_evaluation import Answered, Meter, Speed, Verifications, shares


class Clocked:
    """A scheduler whose decisions are timed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._pick = scheduler.pick
        self.spent_s: list[float] = []
        self.waiting = 0
        """The most requests that one decision looked at."""

    def pick(self, items: Sequence[Item], now: float, room: Room, estimator: Estimator) -> Batch | float:
        began = perf_counter()
        picked = self._pick(items, now, room, estimator)
        self.spent_s.append(perf_counter() - began)
        self.waiting = max(self.waiting, len(items))
        return picked

    def figures(self) -> dict[str, float]:
        """Milliseconds a decision; nothing where none was made."""
        if not self.spent_s:
            return {}
        return {
            "decision_ms": 1e3 * fmean(self.spent_s),
            "decision_ms_median": 1e3 * median(self.spent_s),
            "decision_ms_max": 1e3 * max(self.spent_s),
            "waiting_max": float(self.waiting),
        }


@dataclass(frozen=True, kw_only=True)
class Steady:
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
    speed: Speed = "asked"
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
class Measured:
    """One steady state; `asked` and `violated` are counts of answers by SLO class."""

    devices: int
    seed: int
    asked: dict[str, int]
    violated: dict[str, int]
    speeds: dict[str, float]
    """Mean tokens a second of complete answers, by class."""
    figures: dict[str, float]

    @property
    def rate(self) -> float:
        """The share of answers that were slower than promised; all, where nobody got so far as to ask."""
        asked = sum(self.asked.values())
        return sum(self.violated.values()) / asked if asked else 1.0

    def plain(self) -> dict[str, object]:
        return asdict(self)


def measure(setup: Setup, outcomes: Outcomes, steady: Steady, devices: int, seed: int, enough: float = 1.0) -> Measured:
    """So many devices under one seed; ends early once more than `enough` of the answers are late.

    Raises ValueError for a workload without SLO classes or of another kind than a closed loop.
    """
    if not setup.workload.slo:
        raise ValueError("no SLO class says how fast answers should be; set workload.slo, or add +slo=mixed")
    clocked = Clocked(setup.policy.scheduler)
    workload, policy = replace(setup.workload, devices=devices), replace(setup.policy, scheduler=clocked)
    setup = replace(setup, seed=seed, workload=workload, policy=policy)
    slowest_s = max(setup.workload.max_new_tokens / one.tokens_per_s for one in setup.workload.slo)
    warmup_s, window_s = max(steady.warmup_s, slowest_s), steady.window_for(devices, slowest_s)
    ends_s = warmup_s + window_s
    load = made(setup, outcomes, devices, ends_s + slowest_s, steady.stagger_s)
    opened = outcomes.open(load.queries, setup.policy, seed)
    cast, meter = Cast(setup, opened.cloud_layers), Meter(warmup_s, ends_s)
    verifications = Verifications(cast.workers, warmup_s, ends_s)
    simulator = Simulator([meter, verifications] if steady.attribution else [meter])
    _stage(simulator, cast, opened, load)
    answered = Answered(load, steady.speed)
    simulator.run(until=ends_s)
    for second in range(1, ceil(slowest_s) + 1):
        if answered.is_known(meter, simulator.now, enough):
            break
        simulator.run(until=ends_s + min(second, slowest_s))
    figures = _figures(meter, window_s, devices) | clocked.figures()
    if steady.attribution:
        figures |= shares(verifications.events)
    return Measured(devices, seed, *answered.counts(meter), figures)


def _stage(simulator: Simulator, cast: Cast, opened: Opened, load: Load) -> None:
    """Sets the stage, and lets the devices begin."""
    populate(simulator, cast, Chips(cast, opened, load.queries), (*cast.workers, *cast.devices))
    link(simulator, cast)
    simulator.on_end(Loop(load, cast.devices, simulator.post).hear)


def _figures(meter: Meter, window_s: float, devices: int) -> dict[str, float]:
    """Rates over the window; `wasted_tokens_per_s` is a device's, drafted in vain (WISP, Eq. 7)."""
    w = meter.written
    found = {
        "goodput_tokens_per_s": w.committed / window_s,
        "device_tokens_per_s": w.committed / window_s / devices,
        "rounds_per_s": w.verified / window_s,
    }
    if w.verified:
        found |= {
            "wasted_tokens_per_s": (w.drafted - w.accepted) / window_s / devices,
            "wasted_share": 1 - w.accepted / w.drafted,
            "acceptance": w.accepted / w.sent,
            "sent_per_round": w.sent / w.verified,
        }
    return found
