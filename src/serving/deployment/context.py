"""How long a conversation may become: the prompt and its answer together."""

from serving.deployment.setup import Setup
from serving.engines.models import Checkpoint
from serving.hardware.fleet import check_fits


def context_tokens(setup: Setup, wanted: int | None = None) -> int:
    """What the models of a setup, their positions and the cloud's cache take, in tokens; no more than is `wanted`.

    Raises ValueError for more than they take, or more than a device's memory holds.
    """
    bounds = _bounds(setup)
    most = min(bounds.values())
    if wanted and wanted > most:
        who = min(bounds, key=bounds.__getitem__)
        raise ValueError(f"service.context_tokens is {wanted}, and {who} takes {most}; ask for fewer, or null for all")
    found = wanted or most
    if setup.policy.draft.source == "model":
        for fleet in setup.hardware.device_fleets:
            check_fits(fleet, setup.pair.device.timing, 1, found)
    return found


def _bounds(setup: Setup) -> dict[str, int]:
    found = {}
    if setup.policy.draft.source == "model":
        found["the device's model"] = _positions(setup.pair.device)
    if setup.placed:
        cloud = setup.pair.cloud
        if cloud.server and cloud.server.context_tokens:
            found["the cloud's server"] = cloud.server.context_tokens
        elif cloud.here:
            found["the cloud's model"] = _positions(cloud)
        own = setup.policy.kv_cache.capacity_tokens
        cache = min(setup.cloud_cache_tokens, setup.cloud_cache_tokens if own is None else own)
        if cache < float("inf"):
            block = setup.policy.kv_cache.block_tokens
            found["the cloud's cache"] = int(cache // block) * block
    if not found:
        raise ValueError(
            "nothing says how long a conversation may be; set model.cloud.server.context_tokens to what the server "
            "takes"
        )
    return found


def _positions(checkpoint: Checkpoint) -> int:
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(checkpoint.where).max_position_embeddings)
