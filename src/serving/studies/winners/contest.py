"""What is compared: contenders at each place, simulated once where places differ in nothing that a contender meets."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from serving.deployment.setup import Setup
from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet
from serving.outcomes.fitted import FittedAcceptance
from serving.outcomes.shifted import shift
from serving.policy.policy import Policy
from serving.policy.slots.deadline_aware import DeadlineAware
from serving.policy.slots.placement import DEVICE_TIER
from serving.policy.slots.slo_aware import SloAware
from serving.studies.winners.place import Place
from serving.studies.winners.steady_state import SteadyLoad, SteadyState, measure


@dataclass(frozen=True)
class Simulation:
    """One contender at one place, as far as the place makes a difference to it: without drafts the acceptance makes
    none, without work on devices the device, and without a scheduler that reads promises the promised speed.
    """

    contender: str
    round_trip_ms: float
    acceptance: float | None
    device: str | None
    num_devices: int
    tokens_per_s: float
    """Promised to every request; 0: nothing."""

    @property
    def name(self) -> str:
        """Identifies it in a folder."""
        parts = (self.contender, self.round_trip_ms, self.acceptance, self.device, self.num_devices, self.tokens_per_s)
        return "_".join(f"{part:g}" if isinstance(part, float) else str(part).replace(" ", "-") for part in parts)


States = tuple[SteadyState, ...]
"""One for each seed."""


@dataclass(frozen=True)
class Contest:
    """Contenders, the chips that they draft on, and the load; `drafters` names the contenders whose draft model is not
    the pair's. Raises ValueError for a contender that changes the text, and for names that are not known.
    """

    setup: Setup
    outcomes: FittedAcceptance
    contenders: Mapping[str, Policy]
    devices: Mapping[str, Fleet]
    drafters: Mapping[str, Architecture]
    load: SteadyLoad
    seeds: tuple[int, ...]
    _shifted: dict[tuple[float | None, str], FittedAcceptance] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_contenders(self.contenders, self.drafters)

    def simulation(self, contender: str, place: Place, tokens_per_s: float = 0.0) -> Simulation:
        """What is simulated for a contender at a place, under this promise."""
        policy = self.contenders[contender]
        drafts = policy.draft.source != "none"
        reads_promises = isinstance(policy.scheduler, SloAware | DeadlineAware)
        return Simulation(
            contender,
            place.round_trip_ms,
            place.acceptance if drafts else None,
            place.device if self._works_on_device(policy) else None,
            place.num_devices,
            tokens_per_s if reads_promises else 0.0,
        )

    def run(self, simulation: Simulation) -> States:
        """The steady states under each seed."""
        setup, outcomes = self.setup_of(simulation), self._outcomes(simulation)
        return tuple(
            measure(replace(setup, seed=seed), outcomes, self.load, seed, simulation.tokens_per_s)
            for seed in self.seeds
        )

    def setup_of(self, simulation: Simulation) -> Setup:
        """The setup with the simulation's policy, chips and link."""
        setup, device = self.setup, simulation.device or next(iter(self.devices))
        drafter = self.drafters.get(simulation.contender, setup.pair.device.timed_architecture)
        pair = replace(setup.pair, device=replace(setup.pair.device, timed_architecture=drafter))
        return replace(
            setup,
            pair=pair,
            policy=self.contenders[simulation.contender],
            hardware=replace(setup.hardware, device=self.devices[device]),
            network=replace(setup.network, delay_ms=simulation.round_trip_ms / 2),
            workload=replace(setup.workload, devices=simulation.num_devices),
        )

    def _works_on_device(self, policy: Policy) -> bool:
        layers = self.setup.pair.cloud.timed_architecture.layers
        hops = policy.placement.hops(layers, layers)
        return policy.drafts_on_device or any(hop.node == DEVICE_TIER for hop in hops)

    def _outcomes(self, simulation: Simulation) -> FittedAcceptance:
        """The model at the simulation's acceptance, with the contender's trained scores."""
        acceptance, scorers = simulation.acceptance, self.contenders[simulation.contender].scorers
        place = acceptance, simulation.contender if scorers else ""
        if place not in self._shifted:
            made = self.outcomes if acceptance is None else shift(self.outcomes, acceptance)
            self._shifted[place] = replace(made, pools=made.pools.with_scores(scorers))
        return self._shifted[place]


def check_contenders(contenders: Mapping[str, Policy], drafters: Mapping[str, Architecture]) -> None:
    """Raises ValueError for a contender that changes the text, and for a draft model of none of them."""
    if lossy := [name for name, policy in contenders.items() if not policy.lossless]:
        raise ValueError(
            f"contenders: {', '.join(lossy)} changes the text, and here speed alone decides; leave it out, or verify "
            "all of its drafts (policy/offload=always, policy/verify=lossless)"
        )
    if len(contenders) < 2:
        raise ValueError(f"contenders: {', '.join(contenders) or 'none'} is named; a winner needs two at least")
    if unknown := sorted(set(drafters) - set(contenders)):
        raise ValueError(f"drafters: {unknown[0]!r} is no contender; there are {', '.join(contenders)}")


def to_json(states: States) -> list[dict[str, Any]]:
    return [{"s_per_token": list(one.s_per_token), "busy_s_per_token": one.busy_s_per_token} for one in states]


def from_json(node: list[dict[str, Any]]) -> States:
    return tuple(SteadyState(tuple(one["s_per_token"]), one["busy_s_per_token"]) for one in node)
