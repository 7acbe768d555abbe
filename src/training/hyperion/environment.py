"""Made-up testbeds and arrivals: what a dispatcher is trained and judged in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log, log1p
from typing import ClassVar

from serving.core.keyed_random import key, luck
from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.deployment.topology import Cast
from serving.engines.models import Model, Pair
from serving.hardware.architecture import Architecture
from serving.hardware.chip import Chip
from serving.hardware.fleet import Fleet
from serving.hardware.testbed import Testbed
from serving.hardware.tier import Tier
from serving.messages import Span
from serving.metrics.recorder import Record
from serving.network.link import Link
from serving.outcomes.constant import Acceptance
from serving.outcomes.outcomes import Opened
from serving.outcomes.record import target_alone
from serving.policy.partition.baselines import Balanced
from serving.policy.partition.division import Division
from serving.policy.slots.dispatch import Dispatch
from serving.policy.slots.kv_cache import Reuse
from serving.policy.slots.placement import Tiers
from serving.policy.slots.scheduler import Fifo
from serving.runtimes.emulated import play
from serving.workload.arrivals import Arrival
from serving.workload.dataset import Audience
from serving.workload.metrics import Metric
from serving.workload.prompt import Prompt
from serving.workload.workload import Workload


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included. Raises ValueError for an empty one, or one that begins below 0."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(f"world: a range goes from above 0 to as much or more, got {self.low} to {self.high}")

    def evenly(self, chance: float) -> float:
        return self.low + chance * (self.high - self.low)

    def by_ratio(self, chance: float) -> float:
        """Twice as much is as likely as half as much."""
        return exp(log(self.low) + chance * log(self.high / self.low))

    def whole(self, chance: float) -> int:
        """A whole number of it, each as likely."""
        return int(self.low) + int(chance * (int(self.high) - int(self.low) + 1))


@dataclass(frozen=True, kw_only=True)
class World:
    """What testbeds and arrivals are drawn from. Raises ValueError for a value out of range."""

    architecture: Architecture
    """Of the model that is split evenly over the tiers, as GPipe's."""
    chips: tuple[Chip, ...]
    """In any of their modes, the kinds of nodes that there are."""
    network: Link
    """Between tiers, and to the devices."""
    tasks: int = 14
    """Of an episode, which begins with all nodes idle."""
    tiers: Range = Range(2, 4)
    nodes: Range = Range(2, 5)
    """Of a tier."""
    prompt_tokens: Range = Range(16, 512)
    new_tokens: Range = Range(4, 12)
    """Of an answer: short, so that an episode is; `slower` makes up for it."""
    slower: Range = Range(1, 16)
    """How many times slower chips are than they are: nodes' news of each other are as fresh as with longer answers."""
    load: Range = Range(0.3, 1.5)
    """Of what the busiest tier can do in all, how much is asked for."""
    equal: float = 0.3
    """Share of the tiers whose nodes are all of one kind."""
    scarce: float = 0.2
    """Share of the testbeds whose nodes have memory for a few tasks only; of the others all have enough."""
    room: Range = Range(3, 8)
    """How many tasks such a node has memory for."""

    def __post_init__(self) -> None:
        if self.tasks < 2 or self.tiers.low < 1 or self.nodes.low < 2 or self.new_tokens.low < 1:
            raise ValueError(
                "world: an episode has 2 tasks or more, a testbed a tier, a tier 2 nodes, an answer a token"
            )
        if not self.chips:
            raise ValueError("world.chips is empty; name the chips that nodes are made of")
        for name in ("equal", "scarce"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"world.{name} is {getattr(self, name)}; it is a share: 0 to 1")

    def episode(self, seed: int, name: str) -> Episode:
        """A testbed with its arrivals; the same seed and name draw the same."""
        stream = key(seed, name)
        draw, seed = _Draw(stream), stream >> 33
        rows, tokens = round(self.prompt_tokens.by_ratio(draw())), self.new_tokens
        bed = self._bed(draw)
        division = Division(Balanced(), self.architecture, bed.tiers, self.network, rows, int(tokens.high))
        policy = replace(
            target_alone(), name="episode", scheduler=Fifo(), placement=Tiers(division),
            kv_cache=self._kv_cache(draw, rows + int(tokens.high)),
        )  # fmt: skip
        model = Model(timing=self.architecture, hub=self.architecture.name)
        devices = 1 + int(3 * draw())
        arrivals = Arriving(1.0, tokens)
        workload = Workload(
            dataset=Tasks(self.tasks), arrivals=arrivals, prompts=self.tasks, devices=devices, at_once=self.tasks,
            max_prompt_tokens=rows, max_new_tokens=int(tokens.high), seed=seed,
        )  # fmt: skip
        setup = Setup(Pair(model, model), bed, self.network, workload, policy, seed=seed)
        found = Episode(setup, rows)
        rate_per_s = self.load.evenly(draw()) * found.capacity_per_s
        workload = replace(workload, arrivals=replace(arrivals, rate_per_s=rate_per_s))
        return Episode(replace(setup, workload=workload), rows)

    def _kv_cache(self, draw: _Draw, tokens: int) -> Reuse:
        """Room for a few tasks of at most so many tokens, or for all."""
        scarce, tasks = draw() < self.scarce, self.room.evenly(draw())
        return Reuse(capacity_tokens=tasks * Reuse().taken(tokens) if scarce else None)

    def _bed(self, draw: _Draw) -> Testbed:
        slower, count = self.slower.by_ratio(draw()), self.tiers.whole(draw())

        def tier() -> Tier:
            size, equal = self.nodes.whole(draw()), draw() < self.equal
            kinds = [self._kind(draw, slower) for _ in range(1 if equal else size)]
            fleets = [Fleet(kinds[i % len(kinds)]) for i in range(size)]
            return Tier(fleets[0], tuple(fleets[1:]))

        return Testbed(device=Fleet(self.chips[0]), tiers={f"tier_{i}": tier() for i in range(count)})

    def _kind(self, draw: _Draw, slower: float) -> Chip:
        """A chip in one of its modes, slowed."""
        chip = self.chips[int(draw() * len(self.chips))]
        name = list(chip.modes)[int(draw() * len(chip.modes))]
        mode = chip.modes[name]
        figures = {each: getattr(mode, each) for each in ("fp16_tflops", "memory_gbps")}
        slowed = replace(mode, **{each: value and value / slower for each, value in figures.items()})
        overhead_s = chip.launch_overhead_s * slower
        return replace(chip, modes={name: slowed}, default_mode=name, launch_overhead_s=overhead_s, memory_gb=None)


@dataclass(frozen=True, eq=False)
class Episode:
    """A testbed, and tasks that come to it."""

    setup: Setup
    rows: int
    """Of every prompt."""

    def latencies(self, dispatch: Dispatch) -> list[float]:
        """Each task's end-to-end latency over its lone latency, in the order of arrival, with this dispatch."""
        setup = replace(self.setup, policy=replace(self.setup.policy, dispatch=dispatch))
        records = play(setup, self._opened, self.queries, detail=False)
        return [
            (_ended(records[query.call.session]) - (query.at_s or 0.0)) / lone_s
            for query, lone_s in zip(self.queries, self.lone_s, strict=True)
        ]

    @cached_property
    def queries(self) -> list[Query]:
        """In the order of arrival."""
        setup = self.setup
        return self._outcomes.queries(setup.workload.calls(setup.devices), setup.decoding, setup.seed)

    @cached_property
    def lone_s(self) -> list[float]:
        """What the fastest node of each tier would compute for each task in turn."""
        return [sum(min(self._seconds(steps, tier)) for tier in self._nodes) for steps in self._steps]

    @cached_property
    def capacity_per_s(self) -> float:
        """Tasks a second that the busiest tier can finish."""
        mean = sum(self._steps) / len(self._steps)
        return min(sum(1 / each for each in self._seconds(mean, tier)) for tier in self._nodes)

    @property
    def _steps(self) -> list[int]:
        return [query.call.limit for query in self.queries]

    def _seconds(self, steps: float, tier: list[tuple[float, float]]) -> list[float]:
        """For one task, of each node of a tier."""
        return [(self.rows - 1) * row_s + steps * step_s for row_s, step_s in tier]

    @cached_property
    def _nodes(self) -> list[list[tuple[float, float]]]:
        """(row_s, step_s) of each node of each tier."""
        cast = Cast(self.setup, self._opened.cloud_layers)
        spans: dict[str, Span] = {hop.node: hop.span for hop in cast.hops}
        estimators = {tier: [cast.estimator(node) for node in nodes] for tier, nodes in cast.tiers.items()}
        return [[(e.row_s(spans[tier]), e.step_s(spans[tier])) for e in each] for tier, each in estimators.items()]

    @cached_property
    def _outcomes(self) -> Acceptance:
        return Acceptance(prompt_tokens=self.rows)

    @cached_property
    def _opened(self) -> Opened:
        return self._outcomes.open(self.queries, self.setup.policy, self.setup.seed)


def _ended(record: Record) -> float:
    assert record.ended_s is not None, "who plays an episode has checked that all ended"
    return record.ended_s


class _Draw:
    """Chances in a row."""

    def __init__(self, stream: int) -> None:
        self._stream, self._turn = stream, 0

    def __call__(self) -> float:
        self._turn += 1
        return luck(self._stream, self._turn, "world")


@dataclass(frozen=True)
class Arriving:
    """A Poisson process, answers of any length in a range."""

    rate_per_s: float
    new_tokens: Range

    def times(self, n: int, devices: int, seed: int) -> list[Arrival]:
        stream, at_s, found = key(seed, "arriving"), 0.0, []
        for index in range(n):
            at_s -= log1p(-luck(stream, index, "gap")) / self.rate_per_s
            device, tokens = (luck(stream, index, purpose) for purpose in ("device", "tokens"))
            found.append(Arrival(int(device * devices), at_s, new_tokens=self.new_tokens.whole(tokens)))
        return found


@dataclass(frozen=True)
class Tasks:
    """As many prompts without text."""

    count: int
    name: ClassVar[str] = "episodes"
    metrics: ClassVar[tuple[Metric, ...]] = ()
    measures_quality_of: ClassVar[Audience] = "nobody"

    def prompts(self) -> list[Prompt]:
        return [Prompt(f"task {i}", "", (), "task") for i in range(self.count)]
