"""How a request's time and tokens are divided between the device and those it asks (token routing, section 4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.report.cost import CLOUD_WROTE
from pipeline.report.records import Served


@dataclass(frozen=True)
class Division:
    """Means of a request; None where nobody was asked, or no token is a device's own.

    device_s        its chip is at work (token routing, Table 1: SLM inference time)
    elsewhere_s     all else of its service: communication and the cloud (Comm + LLM inference)
    call_s          the same of each question
    device_token_s  device_s over the tokens that are the device's own, which the paper calls TBT for SLM
    cloud_tokens    tokens that the cloud wrote (routing number)
    """

    device_s: float
    elsewhere_s: float
    call_s: float | None
    device_token_s: float | None
    cloud_tokens: float


def divided(requests: Sequence[Served]) -> Division:
    """Of these requests."""
    n, device_s = len(requests), sum(request.device_busy_s for request in requests)
    elsewhere_s = sum(map(apart_s, requests))
    asked = sum(request.chunks_asked for request in requests)
    return Division(
        device_s / n,
        elsewhere_s / n,
        elsewhere_s / asked if asked else None,
        device_s / own if (own := sum(map(device_tokens, requests))) else None,
        sum(map(cloud_tokens, requests)) / n,
    )


def apart_s(request: Served) -> float:
    """Of its service, what its device's chip was not at work."""
    return max(0.0, (request.service_s or 0.0) - request.device_busy_s)


def device_tokens(request: Served) -> int:
    return len(request.tokens) - cloud_tokens(request)


def cloud_tokens(request: Served) -> int:
    return sum(origin in CLOUD_WROTE for origin in request.origins)
