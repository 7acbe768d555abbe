"""Who is served by which device: each serves one run at a time.

The participants of one of several setups that one driver plays: their names must differ.

The pair's models for every policy of a page.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from serving.deployment.queries import LoadedModels
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.frontend.openai.admission import AdmissionQueue
from serving.nodes.hop_path import TierNodes
from serving.policy.policy import EngineRequirements

if TYPE_CHECKING:
    from serving.engines.torch.tensor_store import TensorStore


class DevicePool:
    """A line before each device; who comes goes where fewest are."""

    def __init__(self, devices: int, max_waiting: int, retry_after_s: float) -> None:
        self._queues = [AdmissionQueue(max_waiting, retry_after_s) for _ in range(devices)]

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[int]:
        """The number of the device that one holds. Raises ApiError (429) where all lines are full."""
        number, line = min(enumerate(self._queues), key=lambda each: (each[1].busy, each[1].waiting))
        async with line.admit():
            yield number


@dataclass(frozen=True)
class PrefixedTopology(Topology):
    """A cast whose nodes' names begin with `prefix`."""

    prefix: str = ""

    @cached_property
    def devices(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{name}" for name in self._unprefixed.devices)

    @cached_property
    def tiers(self) -> TierNodes:
        return {tier: tuple(f"{self.prefix}{name}" for name in names) for tier, names in self._unprefixed.tiers.items()}

    @property
    def _unprefixed(self) -> Topology:
        return Topology(self.setup, self.layers)


def open_shared_models(
    setups: Mapping[str, Setup], accelerator: str, context_lens: Mapping[str, int] | None = None
) -> dict[str, LoadedModels]:
    """Both sides' models by policy, opened once for all policies that ask the same of their engines.

    `context_lens` are the tokens of prompt and answer together, for each policy. Two that score under one name by
    different networks (the routers of CITER and Co-LLM) have engines of their own.
    """
    from serving.deployment.model_loading import load_models

    shared = engine_groups({name: setup.policy.engine_requirements for name, setup in setups.items()})
    found: dict[str, LoadedModels] = {}
    for names, provision in shared:
        pair = setups[names[0]].pair
        longest = max((context_lens[name] for name in names), default=0) if context_lens else None
        found |= dict.fromkeys(names, load_models(pair.device, pair.cloud, accelerator, provision, longest))
    return found


def open_device_models(setups: Mapping[str, Setup], blobs: "TensorStore", accelerator: str) -> dict[str, LoadedModels]:
    """The device's side alone; each policy has its own."""
    from serving.deployment.model_loading import load_side

    return {name: load_side(setup, "device", blobs, accelerator) for name, setup in setups.items()}


def engine_groups(requirements: Mapping[str, EngineRequirements]) -> list[tuple[list[str], EngineRequirements]]:
    """Who can be served by the same engines, and what these must bring."""
    found: list[tuple[list[str], EngineRequirements]] = []
    for name, wanted in requirements.items():
        for i, (names, given) in enumerate(found):
            if both := _merged(given, wanted):
                found[i] = ([*names, name], both)
                break
        else:
            found.append(([name], wanted))
    return found


def _merged(a: EngineRequirements, b: EngineRequirements) -> EngineRequirements | None:
    same = (a.block_tokens, a.hidden_dtype, a.medusa) == (b.block_tokens, b.hidden_dtype, b.medusa)
    agree = all(a.scorers[name].digest == b.scorers[name].digest for name in a.scorers.keys() & b.scorers.keys())
    if not (same and agree):
        return None
    return replace(a, scorers={**a.scorers, **b.scorers}, verifies_drafts=a.verifies_drafts or b.verifies_drafts)
