"""What the page shows: a setup, with other policies beside its own."""

from dataclasses import dataclass, replace
from functools import cached_property

from serving.deployment.setup import Setup, context_tokens
from serving.frontend.service_options import ServiceOptions
from serving.frontend.ui.policy_card import PolicyCard
from serving.hardware.replica_packing import PackingEstimate, ReplicaPacking, reported_factor
from serving.policy.policy import Policy


@dataclass(frozen=True)
class UiConfig:
    """Raises ValueError for policies that the setup cannot serve, an empty key, or a remote cloud with nothing to do.

    Args:
        beside: policies to be chosen on the page beside the setup's own, which comes first; by the names that they
            get there; one that would have the name of the setup's own gives way to it.
        packing: what the cloud's model costs; None: what is reported of it, if anything.
    """

    setup: Setup
    service: ServiceOptions
    other_policies: dict[str, Policy] | None = None
    packing: ReplicaPacking | None = None

    def __post_init__(self) -> None:
        page = self.service.page
        if page.remote_cloud and not self.setup.uses_target:
            raise ValueError(
                f"service.page.remote_cloud is true, but policy {self.setup.policy.name} places nothing in a cloud; choose "
                "another policy, or leave service.page.remote_cloud out"
            )
        if page.remote_cloud:
            security = self.service.security
            security.check_token_is_protected(self.service.cloud, security.ca_certificate is not None)
        page.api_key()
        _ = self.setups

    @cached_property
    def setups(self) -> dict[str, Setup]:
        """A setup of each policy, by its name; beside a remote cloud only policies that need none."""
        first = self.setup.policy.name
        others = {name: policy for name, policy in (self.other_policies or {}).items() if name != first}
        found = {name: replace(self.setup, policy=replace(policy, name=name)) for name, policy in others.items()}
        if self.service.page.remote_cloud:
            found = {name: setup for name, setup in found.items() if not setup.uses_target}
        return {first: self.setup, **found}

    @property
    def excluded_policies(self) -> tuple[str, ...]:
        """Policies that would need a cloud of their own beside the remote one."""
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
        """That a run writes at most where it does not say."""
        return min(self.service.page.max_tokens, self.setup.workload.max_new_tokens)

    @cached_property
    def context_lens(self) -> dict[str, int]:
        """Tokens of prompt and answer together, for each policy."""
        wanted = self.service.context_tokens
        return {name: context_tokens(setup, wanted) for name, setup in self.setups.items()}

    @cached_property
    def packing_factor(self) -> PackingEstimate | None:
        """Pf of the cloud's model."""
        timing = self.setup.pair.cloud.timed_architecture
        return self.packing.factor(timing) if self.packing else reported_factor(timing)
