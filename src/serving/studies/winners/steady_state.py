"""One policy under a steady load: how long a token of an answer takes, and how long the cloud works for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
from serving.drivers.simulator import Simulator
from serving.messages import Command, EmitTokens, Event, Message, Outcome, RequestArrived, Work
from serving.outcomes.outcomes import OutcomeSource
from serving.outcomes.shared_prompts import check_unshared
from serving.runtimes.clients import UnfinishedSessionsError
from serving.studies.capacity.offered_load import ClosedLoopClients, OfferedLoad, requests_of_turns, start_times_s
from serving.workload.slo import SloClass

STEP_S = 0.25
"""Simulated seconds between two looks at whether all counted answers ended."""
LONGEST_S = 1e6
"""Simulated seconds after which a load that still has no counted answer is given up."""
SPARE_TURNS = 2
"""Further requests of each device, so that the load stays until the slowest counted answer ends."""


@dataclass(frozen=True)
class SteadyLoad:
    """Devices that send the next request when the last answer ends.

    They begin within `stagger_s`, and the first answer of each, which does not count, has a random part of the length,
    so that devices are out of step. Then `min_answers` or more answers count, at least one of each device.
    """

    min_answers: int = 16
    stagger_s: float = 2.0

    def __post_init__(self) -> None:
        if self.min_answers < 1 or self.stagger_s < 0:
            raise ValueError(
                f"load: min_answers={self.min_answers} must be 1 or more, and stagger_s={self.stagger_s} seconds, "
                "0 or more"
            )

    def counted_turns(self, num_devices: int) -> int:
        """The counted answers of each device."""
        return ceil(self.min_answers / num_devices)


@dataclass(frozen=True)
class SteadyState:
    """`s_per_token` of each counted answer, from its request to its last token, over its tokens; `busy_s_per_token`:
    seconds that a chip of the cloud works for a token that a user gets.
    """

    s_per_token: tuple[float, ...]
    busy_s_per_token: float

    @property
    def mean_s_per_token(self) -> float:
        return sum(self.s_per_token) / len(self.s_per_token)

    def late_share(self, tokens_per_s: float) -> float:
        """The share of answers that are slower than this."""
        return sum(each * tokens_per_s > 1 for each in self.s_per_token) / len(self.s_per_token)


@dataclass
class CloudObserver:
    """An observer of the cloud's busy time and of users' tokens from `begin_s` on."""

    workers: frozenset[str]
    begin_s: float = float("inf")
    busy_s: float = 0.0
    num_tokens: int = 0

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if now < self.begin_s:
            return
        for command in commands:
            if type(command) is EmitTokens:
                self.num_tokens += len(command.tokens)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if node in self.workers and begin_s >= self.begin_s:
            self.busy_s += end_s - begin_s

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...


@dataclass
class AnswerTimes:
    """Times the answers of the turns 1 to `counted_turns`; `queries` are by turn and device.

    The observer begins when each device has its first answer, that of turn 0.
    """

    queries: Sequence[Query]
    num_devices: int
    counted_turns: int
    simulator: Simulator
    observer: CloudObserver
    asked_s: dict[str, float] = field(default_factory=dict)
    s_per_token: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._place_of = {query.request.session: place for place, query in enumerate(self.queries)}
        self._first_left = self.num_devices

    @property
    def num_counted(self) -> int:
        return self.counted_turns * self.num_devices

    def post(self, at_s: float, device: str, asked: RequestArrived) -> None:
        self.asked_s[asked.request.session] = at_s
        self.simulator.post(at_s, device, asked)

    def on_session_end(self, session: str, now: float) -> None:
        place = self._place_of[session]
        turn = place // self.num_devices
        if 1 <= turn <= self.counted_turns:
            limit = self.queries[place].request.max_new_tokens
            self.s_per_token[session] = (now - self.asked_s[session]) / limit
        if turn == 0:
            self._first_left -= 1
            if not self._first_left:
                self.observer.begin_s = now


def measure(
    setup: Setup, outcomes: OutcomeSource, load: SteadyLoad, seed: int, tokens_per_s: float = 0.0
) -> SteadyState:
    """The steady state of the setup's policy and devices; `tokens_per_s` is promised to every request, 0: nothing.

    Raises ValueError for a testbed with outages.
    """
    setup.check_undisturbed()
    queries = make_queries(setup, outcomes, load, seed, tokens_per_s)
    engines = outcomes.open(queries, setup.policy, seed)
    topology = Topology(setup, engines.cloud_layers, tokenizer=engines.tokenizer)
    observer = CloudObserver(frozenset(topology.workers))
    simulator = Simulator([observer])
    add_nodes(simulator, topology, ChipFactory(topology, engines, queries), (*topology.workers, *topology.devices))
    connect_nodes(simulator, topology)
    times = AnswerTimes(queries, setup.num_devices, load.counted_turns(setup.num_devices), simulator, observer)
    simulator.on_session_end(times.on_session_end)
    offered = OfferedLoad(queries, start_times_s(setup.num_devices, load.stagger_s, seed))
    simulator.on_session_end(ClosedLoopClients(offered, topology.devices, times.post).on_session_end)
    until_s = 0.0
    while len(times.s_per_token) < times.num_counted:
        if until_s > LONGEST_S:
            raise UnfinishedSessionsError(f"policy {setup.policy.name} answers nothing in {LONGEST_S:g} simulated s")
        until_s += STEP_S
        simulator.run(until=until_s)
    return SteadyState(tuple(times.s_per_token.values()), observer.busy_s / max(1, observer.num_tokens))


def make_queries(
    setup: Setup, outcomes: OutcomeSource, load: SteadyLoad, seed: int, tokens_per_s: float
) -> Sequence[Query]:
    """The requests by turn and device."""
    check_unshared(setup.policy)
    promise = SloClass(name="promised", tokens_per_s=tokens_per_s) if tokens_per_s else None
    turns = range(1 + load.counted_turns(setup.num_devices) + SPARE_TURNS)
    requests = requests_of_turns(setup.workload, turns, [promise] * setup.num_devices, seed)
    return outcomes.make_queries(requests, setup.decoding, setup.seed)
