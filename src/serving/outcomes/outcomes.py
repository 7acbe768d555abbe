"""What a simulation asks of those who know the tokens.

Whose drafts left layers early when outcomes were recorded, and whether a policy wants the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.core.decoding import Decoding
from serving.deployment.queries import LoadedModels, Query
from serving.messages import EarlyExitRule
from serving.policy.policy import Policy
from serving.workload.workload import WorkloadRequest


@dataclass(frozen=True)
class OutcomeEngines(LoadedModels):
    """Two engines that look outcomes up instead of computing them."""


class OutcomeSource(Protocol):
    """A source of token outcomes: `trace`, `fitted`, `constant`."""

    @property
    def described(self) -> str:
        """Where the tokens come from, for the report."""
        ...

    @property
    def is_text(self) -> bool:
        """Do the tokens stand for words, so that answers can be judged?"""
        ...

    def make_queries(self, requests: Sequence[WorkloadRequest], decoding: Decoding, seed: int) -> list[Query]:
        """The workload's requests in this source's tokens; raises ValueError for decoding that it does not know."""
        ...

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> OutcomeEngines:
        """Engines for these requests under this policy; raises ValueError for a request that it does not know."""
        ...


def describe_exit(exit_rule: EarlyExitRule | None) -> str:
    """A rule of early exit, for people."""
    if exit_rule is None:
        return "running all layers"
    checks = f", the first {exit_rule.max_checks} of these" if exit_rule.max_checks else ""
    return f"leaving at a {exit_rule.score} above {exit_rule.threshold:g} in the last {exit_rule.last_share:g} of the layers{checks}"


def check_exit(recorded: EarlyExitRule | None, policy: Policy, source: str) -> None:
    """Raises ValueError where a policy's drafts leave early otherwise than the drafts that `source` knows."""
    wanted = policy.early_exit.layer_exit
    if policy.draft.source == "model" and wanted != recorded:
        raise ValueError(
            f"policy {policy.name} drafts {describe_exit(wanted)}, and {source} knows drafts made {describe_exit(recorded)}; "
            "record them by the policy's rule (runtime/outcomes=trace, own_trace or fitted does, early_exit: "
            "${policy.early_exit}), or give the policy the rule that is known (policy.early_exit; none runs all layers)"
        )
