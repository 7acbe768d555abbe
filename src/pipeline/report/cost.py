"""Cloud serving cost as Synera estimates it: c = 1/Pf x T x W (Synera, section 6.1).

Pf is the packing factor of the cloud's model, T the mean time between tokens, W "the average percentage of tokens
generated". The paper does not say which tokens W counts, so both readings are computed; each is 1 where the cloud
writes everything by itself.

    W verified   target tokens computed per token of the text: drafts judged + tokens that the cloud wrote;
                 above 1 where many judged drafts are rejected
    W generated  share of the text that the cloud wrote: corrections, bonus tokens, and tokens without a draft

How a request's time and tokens are divided between the device and those it asks (token routing, section 4.1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.report.records import RequestRecord

CLOUD_ORIGINS = ("corrected", "bonus", "cloud")


@dataclass(frozen=True, slots=True)
class CloudCost:
    """The estimate under both readings of W, in seconds of a whole Llama-2-70B's worth of GPUs per token.

    None where the packing factor is not known, or no request had a gap between tokens.
    """

    w_verified: float
    w_generated: float
    verified_s: float | None
    generated_s: float | None


def estimate_cost(
    origins: Mapping[str, int], num_verified: int, tbt_s: float | None, packing_factor: float | None
) -> CloudCost:
    """From the tokens of the text by origin, drafts judged by the cloud, mean TBT and the packing factor."""
    generated = sum(origins[origin] for origin in CLOUD_ORIGINS)
    tokens = max(1, sum(origins.values()))
    w_verified, w_generated = (num_verified + generated) / tokens, generated / tokens
    known = tbt_s is not None and packing_factor
    scale_s = tbt_s / packing_factor if tbt_s is not None and packing_factor else 0.0
    return CloudCost(
        w_verified, w_generated, scale_s * w_verified if known else None, scale_s * w_generated if known else None
    )


@dataclass(frozen=True)
class TimeBreakdown:
    """Means of a request; None without offloaded chunks, or without tokens of the device.

    device_s            its chip is at work (token routing, Table 1: SLM inference time)
    remote_s            the rest of its service: communication and the cloud (Comm + LLM inference)
    remote_s_per_call   the same per offloaded chunk
    device_s_per_token  device_s over the device's own tokens, which the paper calls TBT for SLM
    cloud_tokens        tokens that the cloud wrote (routing number)
    """

    device_s: float
    remote_s: float
    remote_s_per_call: float | None
    device_s_per_token: float | None
    cloud_tokens: float


def time_breakdown(requests: Sequence[RequestRecord]) -> TimeBreakdown:
    """Of these requests."""
    n, device_s = len(requests), sum(request.device_busy_s for request in requests)
    total_remote_s = sum(map(remote_s, requests))
    asked = sum(request.chunks_offloaded for request in requests)
    return TimeBreakdown(
        device_s / n,
        total_remote_s / n,
        total_remote_s / asked if asked else None,
        device_s / own if (own := sum(map(device_tokens, requests))) else None,
        sum(map(cloud_tokens, requests)) / n,
    )


def remote_s(request: RequestRecord) -> float:
    """The part of its service during which the device's chip was idle."""
    return max(0.0, (request.service_s or 0.0) - request.device_busy_s)


def device_tokens(request: RequestRecord) -> int:
    return len(request.tokens) - cloud_tokens(request)


def cloud_tokens(request: RequestRecord) -> int:
    return sum(origin in CLOUD_ORIGINS for origin in request.origins)
