"""A hosted API and policies that it can and cannot serve."""

from serving.hardware.hosted_api import HostedApi
from serving.policy.policy import Policy
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.offload import RandomOffload
from serving.policy.slots.verify import Replace
from tests.support.policies import policy

FIGURES = ("usd_per_million_input_tokens", "usd_per_million_output_tokens", "ttft_s", "tokens_per_s")
API = HostedApi("an_api", 0.1, 0.4, 0.5, 20.0, "2026-11", sources=dict.fromkeys(FIGURES, "unverified: assumed"))


def routing(share: float = 1.0) -> Policy:
    """The device writes token by token, and asks the cloud for `share` of them."""
    return policy("sled", draft=WindowDraft(1), offload=RandomOffload(share), verify=Replace())
