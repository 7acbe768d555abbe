"""What the page shows: a setup with other policies beside its own, and how each policy is described there."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from serving.deployment.setup import Setup, context_tokens
from serving.frontend.service_options import ServiceOptions
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
    """A setup's policy as the page presents it: its modes, and what its threshold means."""

    setup: Setup

    @property
    def policy(self) -> Policy:
        return self.setup.policy

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def routed(self) -> RoutedOffload | None:
        """The slot that routes single tokens; None for a policy without one."""
        offload = self.policy.offload
        return offload if isinstance(offload, RoutedOffload) else None

    @property
    def greedy(self) -> bool:
        """True if the policy, or the server of its large model, decodes greedily only."""
        return self.setup.requires_greedy

    @property
    def modes(self) -> tuple[RoutingMode, ...]:
        """joint, unless the policy offloads nothing; small_only, if the policy routes tokens or offloads nothing."""
        if self.policy.offload.scope == "none" or (self.routed and self.routed.mode == "small_only"):
            return ("small_only",)
        return ("joint", "small_only") if self.routed else ("joint",)

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": "a router decides for each token which model writes it" if self.routed else self._summary,
            "modes": self.modes,
            "greedy": self.greedy,
            "router": _router_json(self.routed) if self.routed else None,
            "no_slider_reason": "" if self.routed else f"{self.name} has no router: {self._summary}, at any threshold.",
        }

    @property
    def _summary(self) -> str:
        if self.policy.is_colocated:
            return "the cloud drafts for itself, and checks every draft"
        return _SUMMARIES[self.policy.offload.scope]


def _router_json(routed: RoutedOffload) -> dict[str, Any]:
    """`scores` are those of held-out states, ascending; they show what share of tokens a threshold routes."""
    router = routed.scorer
    return {
        "family": getattr(router, "family", type(router).__name__.lower()),
        "threshold": routed.effective_threshold,
        "artifact_threshold": router.threshold,
        "side": router.side,
        "scores": list(getattr(router, "heldout_scores", ())),
    }


@dataclass(frozen=True)
class UiConfig:
    """Raises ValueError for policies that the setup cannot serve, an empty key, or a policy that does not use the
    remote cloud.

    Args:
        other_policies: policies to choose beside the setup's own, by the names that the page gives them. The setup's
            own comes first; another of the same name is left out.
    """

    setup: Setup
    service: ServiceOptions
    other_policies: dict[str, Policy] | None = None

    def __post_init__(self) -> None:
        page = self.service.page
        if page.remote_cloud and not self.setup.uses_target:
            raise ValueError(
                f"service.page.remote_cloud is true, but policy {self.setup.policy.name} places nothing in a cloud; "
                "choose another policy, or leave service.page.remote_cloud out"
            )
        if page.remote_cloud:
            security = self.service.security
            security.check_token_is_protected(self.service.cloud, security.ca_certificate is not None)
        page.api_key()
        _ = self.setups

    @cached_property
    def setups(self) -> dict[str, Setup]:
        """One setup per policy, by name. With a remote cloud, other policies only if they need no cloud."""
        first = self.setup.policy.name
        others = {name: policy for name, policy in (self.other_policies or {}).items() if name != first}
        found = {name: replace(self.setup, policy=replace(policy, name=name)) for name, policy in others.items()}
        if self.service.page.remote_cloud:
            found = {name: setup for name, setup in found.items() if not setup.uses_target}
        return {first: self.setup, **found}

    @property
    def excluded_policies(self) -> tuple[str, ...]:
        """Policies left out because they would need a second cloud beside the remote one."""
        return tuple(sorted((self.other_policies or {}).keys() - self.setups.keys()))

    @cached_property
    def policy_cards(self) -> dict[str, PolicyCard]:
        return {name: PolicyCard(setup) for name, setup in self.setups.items()}

    @property
    def num_devices(self) -> int:
        """How many of the testbed's devices take runs."""
        return min(self.service.page.max_runs, self.setup.num_devices)

    @property
    def default_max_tokens(self) -> int:
        """Limit of a run that names none."""
        return min(self.service.page.max_tokens, self.setup.workload.max_new_tokens)

    @cached_property
    def context_lens(self) -> dict[str, int]:
        """Tokens of prompt and answer together, for each policy."""
        wanted = self.service.context_tokens
        return {name: context_tokens(setup, wanted) for name, setup in self.setups.items()}
