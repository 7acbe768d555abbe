"""The interface of a source of outcomes, and the check that its drafts exit early by the policy's rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from serving.core.decoding import Decoding
from serving.deployment.queries import LoadedModels, Query
from serving.messages import EarlyExitRule
from serving.policy.policy import Policy
from serving.policy.slots.draft import TreeDraft
from serving.workload.workload import WorkloadRequest


@dataclass(frozen=True)
class OutcomeEngines(LoadedModels):
    """Engines that look outcomes up instead of computing them."""


class OutcomeSource(Protocol):
    """A source of token outcomes: `trace`, `fitted`, `constant`."""

    @property
    def described(self) -> str:
        """The source of the tokens, for the report."""
        ...

    @property
    def is_text(self) -> bool:
        """True if tokens are text, so that the quality of answers can be measured."""
        ...

    def make_queries(self, requests: Sequence[WorkloadRequest], decoding: Decoding, seed: int) -> list[Query]:
        """The workload's requests in this source's tokens. Raises ValueError for decoding that it does not support."""
        ...

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> OutcomeEngines:
        """Engines for these requests. Raises ValueError for requests or a policy that it does not support."""
        ...


@runtime_checkable
class PolicyChecking(Protocol):
    """A source of outcomes that knows before any work which policies it cannot serve."""

    def check(self, policy: Policy) -> None:
        """Raises ValueError for a policy whose outcomes it has not."""
        ...


@dataclass(frozen=True)
class PlannedOutcomes:
    """Stands for a source whose artifact is still to be made, while a plan is made.

    Args:
        name: of the choice, as a command line has it.
        draws_trees: True if it knows trees of the policy's draft model.
        is_text: True if its tokens are text.
    """

    name: str
    draws_trees: bool
    is_text: bool

    def check(self, policy: Policy) -> None:
        """Raises ValueError for a policy whose trees, or whose text, the source will not have."""
        if isinstance(policy.draft, TreeDraft) and not self.draws_trees:
            raise ValueError(
                f"policy {policy.name} grows trees of up to {policy.draft.nodes} nodes, and {self.name} records none; "
                "choose runtime/outcomes=tree_trace or own_trace, which record them, or fitted, which draws them"
            )
        if not self.is_text:
            check_has_text(policy, self.name)


def check_has_text(policy: Policy, name: str) -> None:
    """Raises ValueError for drafts that are read off the text, where tokens are numbers that never repeat."""
    if policy.draft.source == "lookup":
        raise ValueError(
            f"policy {policy.name} drafts what once followed the text's last tokens, and {name} has no text; choose "
            "runtime/outcomes=trace or own_trace, or policy/draft=window or tree"
        )


def describe_exit(exit_rule: EarlyExitRule | None) -> str:
    """A rule of early exit, as text."""
    if exit_rule is None:
        return "running all layers"
    checks = f", the first {exit_rule.max_checks} of these" if exit_rule.max_checks else ""
    score = f"{exit_rule.score} above {exit_rule.threshold:g}"
    return f"leaving at a {score} in the last {exit_rule.last_share:g} of the layers{checks}"


def check_exit(recorded: EarlyExitRule | None, policy: Policy, source: str) -> None:
    """Raises ValueError if the policy's drafts exit early by another rule than the drafts of `source`."""
    wanted = policy.early_exit.layer_exit
    if policy.draft.source == "model" and wanted != recorded:
        raise ValueError(
            f"policy {policy.name} drafts {describe_exit(wanted)}, and {source} knows drafts made "
            f"{describe_exit(recorded)}; record them by the policy's rule (runtime/outcomes=trace, own_trace or fitted "
            "does, early_exit: ${policy.early_exit}), or give the policy the rule that is known (policy.early_exit; "
            "none runs all layers)"
        )
