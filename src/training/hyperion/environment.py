"""Random testbeds and arrivals, in which a dispatcher is trained and judged."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log, log1p
from typing import ClassVar

from serving.core.keyed_random import key, uniform
from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.engines.models import ModelConfig, ModelPair
from serving.hardware.architecture import Architecture
from serving.hardware.chip import Chip, SoftwareEfficiency
from serving.hardware.fleet import Fleet
from serving.hardware.latency import ForwardLoad
from serving.hardware.testbed import Testbed, Tier
from serving.messages import Span
from serving.metrics.recorder import SessionRecord
from serving.network.link import Link
from serving.outcomes.constant import ConstantAcceptance
from serving.outcomes.outcomes import OutcomeEngines
from serving.outcomes.record import target_only
from serving.policy.partition.baselines import GPipeSplit
from serving.policy.partition.division import ModelPartition
from serving.policy.slots.dispatch import Dispatch
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.placement import TieredPlacement
from serving.policy.slots.scheduler import Fifo
from serving.runtimes.emulated import simulate
from serving.workload.arrivals import Arrival
from serving.workload.dataset import QualityTarget
from serving.workload.metrics import Metric
from serving.workload.prompt import Prompt
from serving.workload.workload import Workload


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included. Raises ValueError for an empty range or one not above 0."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(
                f"environment: a range goes from above 0 to as much or more, got {self.low} to {self.high}"
            )

    def uniform(self, quantile: float) -> float:
        return self.low + quantile * (self.high - self.low)

    def log_uniform(self, quantile: float) -> float:
        """Uniform over the logarithm."""
        return exp(log(self.low) + quantile * log(self.high / self.low))

    def integer(self, quantile: float) -> int:
        """Whole numbers with equal probability."""
        return int(self.low) + int(quantile * (int(self.high) - int(self.low) + 1))


@dataclass(frozen=True, kw_only=True)
class DispatchEnvironment:
    """The distribution of testbeds and arrivals. Raises ValueError for a value out of range."""

    architecture: Architecture
    """Of the model, which is split evenly over the tiers as GPipe does."""
    chips: tuple[Chip, ...]
    """Chips of the nodes, in any of their modes."""
    network: Link
    """Between tiers, and to the devices."""
    tasks_per_episode: int = 14
    """An episode begins with all nodes idle."""
    tiers: Range = Range(2, 4)
    nodes_per_tier: Range = Range(2, 5)
    prompt_tokens: Range = Range(16, 512)
    new_tokens: Range = Range(4, 12)
    """Tokens of an answer: few, so that an episode is short; `chip_slowdown` makes up for it."""
    chip_slowdown: Range = Range(1, 16)
    """Factor by which chips are slowed, so that load reports are as fresh as they are with longer answers."""
    offered_load: Range = Range(0.3, 1.5)
    """Arrival rate as a share of the busiest tier's capacity."""
    homogeneous_share: float = 0.3
    """Share of the tiers whose nodes all have the same chip."""
    low_memory_share: float = 0.2
    """Share of the testbeds whose nodes have memory for a few tasks only; the others have enough."""
    low_memory_tasks: Range = Range(3, 8)
    """Tasks that such a node has memory for."""

    def __post_init__(self) -> None:
        if self.tasks_per_episode < 2 or self.tiers.low < 1 or self.nodes_per_tier.low < 2 or self.new_tokens.low < 1:
            raise ValueError(
                "environment: an episode has 2 tasks or more, a testbed a tier, a tier 2 nodes, an answer a token"
            )
        if not self.chips:
            raise ValueError("environment.chips is empty; name the chips that nodes are made of")
        for name in ("homogeneous_share", "low_memory_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"environment.{name} is {getattr(self, name)}; it is a share: 0 to 1")

    def sample_episode(self, seed: int, name: str) -> "Episode":
        """A testbed with its arrivals; the same seed and name give the same episode."""
        stream = key(seed, name)
        draw, seed = _UniformStream(stream), stream >> 33
        prompt_tokens, max_new_tokens = round(self.prompt_tokens.log_uniform(draw())), int(self.new_tokens.high)
        testbed = self._testbed(draw)
        partition = ModelPartition(
            GPipeSplit(), self.architecture, testbed.tiers, self.network, prompt_tokens, max_new_tokens
        )
        policy = replace(
            target_only(),
            name="episode",
            scheduler=Fifo(),
            placement=TieredPlacement(partition),
            kv_cache=self._kv_cache(draw, prompt_tokens + max_new_tokens),
        )
        model = ModelConfig(timed_architecture=self.architecture, hub=self.architecture.name)
        devices = 1 + int(3 * draw())
        arrivals = EpisodeArrivals(1.0, self.new_tokens)
        workload = Workload(
            dataset=EpisodeDataset(self.tasks_per_episode),
            arrivals=arrivals,
            num_prompts=self.tasks_per_episode,
            devices=devices,
            max_concurrency=self.tasks_per_episode,
            max_prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )
        setup = Setup(ModelPair(model, model), testbed, self.network, workload, policy, seed=seed)
        found = Episode(setup, prompt_tokens)
        rate_per_s = self.offered_load.uniform(draw()) * found.capacity_tasks_per_s
        workload = replace(workload, arrivals=replace(arrivals, rate_per_s=rate_per_s))
        return Episode(replace(setup, workload=workload), prompt_tokens)

    def _kv_cache(self, draw: "_UniformStream", tokens: int) -> PrefixCaching:
        """Memory for a few tasks of at most `tokens` tokens, or for all tasks."""
        low_memory, tasks = draw() < self.low_memory_share, self.low_memory_tasks.uniform(draw())
        return PrefixCaching(capacity_tokens=tasks * PrefixCaching().allocated_tokens(tokens) if low_memory else None)

    def _testbed(self, draw: "_UniformStream") -> Testbed:
        slowdown, count = self.chip_slowdown.log_uniform(draw()), self.tiers.integer(draw())

        def tier() -> Tier:
            size, homogeneous = self.nodes_per_tier.integer(draw()), draw() < self.homogeneous_share
            chips = [self._chip_variant(draw, slowdown) for _ in range(1 if homogeneous else size)]
            fleets = [Fleet(chips[i % len(chips)]) for i in range(size)]
            return Tier(fleets[0], tuple(fleets[1:]))

        return Testbed(device=Fleet(self.chips[0]), tiers={f"tier_{i}": tier() for i in range(count)})

    def _chip_variant(self, draw: "_UniformStream", slowdown: float) -> Chip:
        """A random chip in a random mode, slowed down."""
        chip = self.chips[int(draw() * len(self.chips))]
        name = list(chip.modes)[int(draw() * len(chip.modes))]
        mode = chip.modes[name]
        figures = {each: getattr(mode, each) for each in ("fp16_tflops", "memory_gbps")}
        slowed = replace(mode, **{each: value and value / slowdown for each, value in figures.items()})
        software = {key: _slowed(reached, slowdown) for key, reached in chip.software.items()}
        return replace(chip, modes={name: slowed}, default_mode=name, software=software, memory_gb=None)


def _slowed(reached: SoftwareEfficiency, slowdown: float) -> SoftwareEfficiency:
    """The same shares of a slower chip, with overheads that are longer by as much."""
    overheads_s = {name: getattr(reached, name) * slowdown for name in ("forward_overhead_s", "layer_overhead_s")}
    return replace(reached, **overheads_s)


@dataclass(frozen=True, eq=False)
class Episode:
    """A testbed and the tasks that arrive at it."""

    setup: Setup
    prompt_tokens: int
    """Tokens of every prompt."""

    def normalised_latencies(self, dispatch: Dispatch) -> list[float]:
        """Each task's end-to-end latency over its unloaded latency under `dispatch`, in the order of arrival."""
        setup = replace(self.setup, policy=replace(self.setup.policy, dispatch=dispatch))
        records = simulate(setup, self._opened, self.queries, detail=False)
        return [
            (_end_s(records[query.request.session]) - (query.arrival_s or 0.0)) / unloaded_s
            for query, unloaded_s in zip(self.queries, self.unloaded_latency_s, strict=True)
        ]

    @cached_property
    def queries(self) -> list[Query]:
        """In the order of arrival."""
        setup = self.setup
        return self._outcomes.make_queries(setup.workload.requests(setup.num_devices), setup.decoding, setup.seed)

    @cached_property
    def unloaded_latency_s(self) -> list[float]:
        """Compute time of each task if the fastest node of every tier serves it at once."""
        return [
            sum(min(self._service_times_s(steps, tier)) for tier in self._node_times_s) for steps in self._decode_steps
        ]

    @cached_property
    def capacity_tasks_per_s(self) -> float:
        """Tasks per second that the busiest tier can finish."""
        mean = sum(self._decode_steps) / len(self._decode_steps)
        return min(sum(1 / each for each in self._service_times_s(mean, tier)) for tier in self._node_times_s)

    @property
    def _decode_steps(self) -> list[int]:
        return [query.request.max_new_tokens for query in self.queries]

    def _service_times_s(self, steps: float, tier: list[tuple[float, float]]) -> list[float]:
        """Seconds of one task on each node of a tier."""
        return [(self.prompt_tokens - 1) * token_s + steps * step_s for token_s, step_s in tier]

    @cached_property
    def _node_times_s(self) -> list[list[tuple[float, float]]]:
        """(token_s, step_s) of each node of each tier."""
        topology = Topology(self.setup, self._opened.cloud_layers)
        spans: dict[str, Span] = {hop.node: hop.span for hop in topology.hops}
        return [
            [self._node_times(topology, node, spans[tier]) for node in nodes] for tier, nodes in topology.tiers.items()
        ]

    def _node_times(self, topology: Topology, node: str, span: Span) -> tuple[float, float]:
        """Seconds that a further token of a prompt takes on average, and a pass with one token."""
        latency, further = topology.cloud_latency(node), self.prompt_tokens - 1
        step = ForwardLoad(topology.scale.layers_for(span), 1, 1, 0, int(span.lm_head))
        prefill = step._replace(num_tokens=further + 1, interactions=(further + 1) ** 2)
        step_s = latency.seconds(step)
        return (latency.seconds(prefill) - step_s) / max(1, further), step_s

    @cached_property
    def _outcomes(self) -> ConstantAcceptance:
        return ConstantAcceptance(prompt_tokens=self.prompt_tokens)

    @cached_property
    def _opened(self) -> OutcomeEngines:
        return self._outcomes.open(self.queries, self.setup.policy, self.setup.seed)


def _end_s(record: SessionRecord) -> float:
    assert record.ended_s is not None, "`simulate` raises if a session did not end"
    return record.ended_s


class _UniformStream:
    """Uniform draws from one random stream, one after the other."""

    def __init__(self, stream: int) -> None:
        self._stream, self._index = stream, 0

    def __call__(self) -> float:
        self._index += 1
        return uniform(self._stream, self._index, "world")


@dataclass(frozen=True)
class EpisodeArrivals:
    """A Poisson process; answer lengths are uniform over a range."""

    rate_per_s: float
    new_tokens: Range

    def times(self, n: int, devices: int, seed: int) -> list[Arrival]:
        stream, at_s, found = key(seed, "arriving"), 0.0, []
        for index in range(n):
            at_s -= log1p(-uniform(stream, index, "gap")) / self.rate_per_s
            device, tokens = (uniform(stream, index, purpose) for purpose in ("device", "tokens"))
            found.append(Arrival(int(device * devices), at_s, new_tokens=self.new_tokens.integer(tokens)))
        return found


@dataclass(frozen=True)
class EpisodeDataset:
    """`count` prompts without text."""

    count: int
    name: ClassVar[str] = "episodes"
    has_text: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = ()
    measures_quality_of: ClassVar[QualityTarget] = "none"

    def prompts(self) -> list[Prompt]:
        return [Prompt(f"task {i}", "", (), "task") for i in range(self.count)]
