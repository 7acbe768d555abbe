"""Which policies a hosted API can serve: those whose cloud decodes a text, and never judges drafts or layers."""

from serving.deployment.setup import Setup
from serving.hardware.hosted_api import HostedApi
from serving.policy.slots.placement import DEVICE_TIER


def api_refusal(setup: Setup, api: HostedApi) -> str:
    """Why the API cannot stand for the setup's cloud, by the slots of its policy; empty if it can."""
    policy, target = setup.policy, setup.pair.cloud.timed_architecture.name
    needs = policy.engine_requirements
    hops = setup.hops
    if not hops:
        return f"{policy.name} asks no cloud"
    if needs.verifies_drafts:
        return f"{policy.name} has drafts verified, and {api.name} judges none: it continues a text"
    if len(hops) > 1 or hops[0].node == DEVICE_TIER:
        return f"{policy.name} splits the model, and {api.name} runs it whole"
    if policy.lookahead.max_steps > 0:
        return f"{policy.name} drafts while it waits, so that an answer's time with {api.name} is no sum of its parts"
    if api.model is not None and api.model != target:
        return f"{api.name} serves {api.model}, and the cloud's model is timed as {target}"
    return ""
