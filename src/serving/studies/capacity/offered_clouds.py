"""The clouds that may serve a setup: a kind of chip each, in place of the testbed's own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from serving.deployment.setup import Setup
from serving.hardware.chip import Chip


@dataclass(frozen=True)
class OfferedClouds:
    """`setup` on each of `chips`; None: on the testbed's own cloud, as it is.

    A cloud of an offered chip is one node of as many chips as the testbed's (`tensor_parallel`), in the chip's default
    mode and software. Raises ValueError if chips are offered twice, or for a testbed of tiers.
    """

    setup: Setup
    chips: tuple[Chip, ...] | None = None

    def __post_init__(self) -> None:
        names = [chip.name for chip in self.chips or ()]
        if len(set(names)) < len(names):
            raise ValueError(f"the offered chips name one twice: {', '.join(names)}")
        if self.chips and self.setup.hardware.cloud is None:
            raise ValueError(
                "chips can be offered in place of a testbed's cloud (hardware.cloud), and this testbed has tiers: "
                f"{self.setup.hardware.tier_names}; choose another hardware, or offer no chips to take it as it is"
            )

    @cached_property
    def setups(self) -> Mapping[str, Setup]:
        """By the cloud's name."""
        if self.chips is None:
            return {self._own_name: self.setup}
        if not self.setup.uses_target:
            return {NO_CLOUD: self.setup}
        return {name: found for name, found in self._tried.items() if isinstance(found, Setup)}

    @cached_property
    def refusals(self) -> Mapping[str, str]:
        """Why a chip cannot serve the setup, by its name."""
        return {name: found for name, found in self._tried.items() if isinstance(found, str)}

    @cached_property
    def _tried(self) -> Mapping[str, Setup | str]:
        return {chip.name: self._on(chip) for chip in self.chips or ()} if self.setup.uses_target else {}

    def _on(self, chip: Chip) -> Setup | str:
        """The setup on this chip, or why not."""
        hardware = self.setup.hardware
        assert hardware.cloud is not None
        try:
            cloud = replace(hardware.cloud, chip=chip, count=1, mode=None, software=None, timing="roofline")
            return replace(self.setup, hardware=replace(hardware, cloud=cloud))
        except ValueError as problem:
            return str(problem)

    @property
    def _own_name(self) -> str:
        if not self.setup.uses_target:
            return NO_CLOUD
        hardware = self.setup.hardware
        return hardware.cloud.chip.name if hardware.cloud else hardware.tier_names


NO_CLOUD = "no cloud"
"""What a policy that asks no cloud runs on."""
