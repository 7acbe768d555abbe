"""The participants of one of several setups that one driver plays: their names must differ."""

from dataclasses import dataclass
from functools import cached_property

from serving.deployment.topology import Cast
from serving.nodes.node_selector import Tiers


@dataclass(frozen=True)
class NamedCast(Cast):
    """A cast whose nodes' names begin with `prefix`."""

    prefix: str = ""

    @cached_property
    def devices(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{name}" for name in self._plain.devices)

    @cached_property
    def tiers(self) -> Tiers:
        return {tier: tuple(f"{self.prefix}{name}" for name in names) for tier, names in self._plain.tiers.items()}

    @property
    def _plain(self) -> Cast:
        return Cast(self.setup, self.layers)
