"""One policy as the page offers it: its modes, and what its threshold means."""

from dataclasses import dataclass
from typing import Any

from serving.deployment.setup import Setup
from serving.policy.policy import Policy
from serving.policy.slots.routed_offload import RoutedOffload, RoutingMode

_SUMMARIES = {
    "none": "the device writes everything",
    "full": "the cloud writes everything",
    "all": "the device drafts, and the cloud checks every draft",
    "some": "the device drafts, and the cloud is asked about some drafts",
}


@dataclass(frozen=True)
class PolicyCard:
    """A setup's policy, and how the page speaks of it."""

    setup: Setup

    @property
    def policy(self) -> Policy:
        return self.setup.policy

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def routed(self) -> RoutedOffload | None:
        """The slot that routes single tokens, where the policy has one."""
        offload = self.policy.offload
        return offload if isinstance(offload, RoutedOffload) else None

    @property
    def greedy(self) -> bool:
        """For the policy, or for who serves its large model."""
        return self.setup.requires_greedy

    @property
    def modes(self) -> tuple[RoutingMode, ...]:
        """joint, and small_only where the policy can be told to route nothing or never does."""
        if self.policy.offload.scope == "none" or (self.routed and self.routed.mode == "small_only"):
            return ("small_only",)
        return ("joint", "small_only") if self.routed else ("joint",)

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": "a router decides for each token who writes it" if self.routed else self._summary,
            "modes": self.modes,
            "greedy": self.greedy,
            "router": _router_json(self.routed) if self.routed else None,
            "no_slider_reason": "" if self.routed else f"{self.name} has no router: {self._summary}, at any threshold.",
        }

    @property
    def _summary(self) -> str:
        return _SUMMARIES[self.policy.offload.scope]


def _router_json(routed: RoutedOffload) -> dict[str, Any]:
    """`scores` are of held-out states, in order: what share of them a threshold routes."""
    router = routed.router
    return {
        "family": getattr(router, "family", type(router).__name__.lower()),
        "threshold": routed.effective_threshold,
        "artifact_threshold": router.threshold,
        "side": router.side,
        "scores": list(getattr(router, "scores", ())),
    }
