"""What may be bought for a setup: clouds of one chip each, and hosted APIs; at which price, for how many users."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from serving.deployment.setup import Setup
from serving.hardware.battery import Battery
from serving.hardware.chip import Chip
from serving.hardware.hosted_api import HostedApi
from serving.hardware.price import Price
from serving.studies.buying.hosting import api_refusal
from serving.studies.buying.usage import Usage
from serving.studies.capacity.offered_clouds import OfferedClouds


@dataclass(frozen=True)
class Offers:
    """The offers for `setup`; checked as a whole before any work.

    prices     chip's name -> price, in place of the chip's own
    batteries  chip's name -> battery of the devices that have it; without one the share of a battery is unknown

    Raises ValueError if nothing can serve the setup, and if a chip that can has no price.
    """

    setup: Setup
    usage: Usage
    users: tuple[int, ...]
    chips: tuple[Chip, ...] = ()
    apis: tuple[HostedApi, ...] = ()
    prices: Mapping[str, Price] = field(default_factory=dict)
    batteries: Mapping[str, Battery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.users or min(self.users) < 1 or len(set(self.users)) < len(self.users):
            raise ValueError(f"buy.users are {list(self.users)}; give different numbers of users, each 1 or more")
        if not self.setup.workload.slo:
            raise ValueError("no SLO class says how fast answers should be; set workload.slo, or add +slo=speed_4")
        if not self.clouds.setups and not self.served_by:
            why = "; ".join([*self.clouds.refusals.values(), *self.api_refusals.values()])
            raise ValueError(
                f"nothing that is offered can serve {self.setup.policy.name}: "
                f"{why or 'buy.chips and buy.apis are empty'}; offer another chip (buy.chips) or API (buy.apis)"
            )
        for name in self.clouds.setups:
            if self.setup.uses_target and self.price(name) is None:
                raise ValueError(
                    f"chip {name} has no price, so that its cost is unknown; add one with its source and date "
                    f"(buy.prices.{name}), or leave the chip out of buy.chips"
                )

    @cached_property
    def clouds(self) -> OfferedClouds:
        return OfferedClouds(self.setup, self.chips)

    @cached_property
    def api_refusals(self) -> Mapping[str, str]:
        """Why an API cannot serve the setup, by its name."""
        tried = {api.name: api_refusal(self.setup, api) for api in self.apis}
        return {name: why for name, why in tried.items() if why}

    @property
    def served_by(self) -> tuple[HostedApi, ...]:
        """The APIs that can."""
        return tuple(api for api in self.apis if api.name not in self.api_refusals)

    def price(self, cloud: str) -> Price | None:
        """Of one chip of this cloud; None: not known."""
        chip = next((chip for chip in self.chips if chip.name == cloud), None)
        return self.prices.get(cloud) or (chip.price if chip else None)

    @property
    def battery(self) -> Battery | None:
        """Of the devices; None if not all of them have the same, known one."""
        found = [self.batteries.get(fleet.chip.name) for fleet in self.setup.hardware.device_fleets]
        return found[0] if found and all(one == found[0] for one in found) else None
