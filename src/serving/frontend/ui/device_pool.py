"""Who is served by which device: each serves one run at a time.

The participants of one of several setups that one driver plays: their names must differ.

The pair's models for every policy of a page.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from serving.deployment.queries import Models
from serving.deployment.setup import Setup
from serving.deployment.topology import Cast
from serving.frontend.openai.admission import Line
from serving.nodes.node_selector import Tiers
from serving.policy.engine_requirements import Provision

if TYPE_CHECKING:
    from serving.engines.torch.tensor_store import Blobs


class Seats:
    """A line before each device; who comes goes where fewest are."""

    def __init__(self, devices: int, bound: int, retry_after_s: float) -> None:
        self._lines = [Line(bound, retry_after_s) for _ in range(devices)]

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[int]:
        """The number of the device that one holds. Raises ApiError (429) where all lines are full."""
        number, line = min(enumerate(self._lines), key=lambda each: (each[1].busy, each[1].waiting))
        async with line.turn():
            yield number


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


def open_all(
    setups: Mapping[str, Setup], accelerator: str, contexts: Mapping[str, int] | None = None
) -> dict[str, Models]:
    """Both sides' models by policy, opened once for all policies that ask the same of their engines.

    `contexts` are the tokens of prompt and answer together, for each policy. Two that score under one name by different
    networks (the routers of CITER and Co-LLM) have engines of their own.
    """
    from serving.deployment.model_loading import open_models

    shared = shares({name: setup.policy.provision for name, setup in setups.items()})
    found: dict[str, Models] = {}
    for names, provision in shared:
        pair = setups[names[0]].pair
        longest = max((contexts[name] for name in names), default=0) if contexts else None
        found |= dict.fromkeys(names, open_models(pair.device, pair.cloud, accelerator, provision, longest))
    return found


def open_devices(setups: Mapping[str, Setup], blobs: "Blobs", accelerator: str) -> dict[str, Models]:
    """The device's side alone; each policy has its own."""
    from serving.deployment.model_loading import open_side

    return {name: open_side(setup, "device", blobs, accelerator) for name, setup in setups.items()}


def shares(provisions: Mapping[str, Provision]) -> list[tuple[list[str], Provision]]:
    """Who can be served by the same engines, and what these must bring."""
    found: list[tuple[list[str], Provision]] = []
    for name, wanted in provisions.items():
        for i, (names, given) in enumerate(found):
            if both := _together(given, wanted):
                found[i] = ([*names, name], both)
                break
        else:
            found.append(([name], wanted))
    return found


def _together(a: Provision, b: Provision) -> Provision | None:
    same = (a.block_tokens, a.number, a.medusa) == (b.block_tokens, b.number, b.medusa)
    agree = all(a.scorers[name].digest == b.scorers[name].digest for name in a.scorers.keys() & b.scorers.keys())
    if not (same and agree):
        return None
    return replace(a, scorers={**a.scorers, **b.scorers}, verifies=a.verifies or b.verifies)
