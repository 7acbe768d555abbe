"""The pair's models for every policy of a page."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from serving.deployment.queries import Models
from serving.deployment.setup import Setup
from serving.policy.engine_requirements import Provision

if TYPE_CHECKING:
    from serving.engines.torch.tensor_store import Blobs


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
