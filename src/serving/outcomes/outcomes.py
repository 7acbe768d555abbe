"""What a simulation asks of those who know the tokens.

Whose drafts left layers early when outcomes were recorded, and whether a policy wants the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.core.decoding import Decoding
from serving.deployment.queries import Models, Query
from serving.messages import Exit
from serving.policy.policy import Policy
from serving.workload.workload import Asked


@dataclass(frozen=True)
class Opened(Models):
    """Two engines that look outcomes up instead of computing them."""


class Outcomes(Protocol):
    """A source of token outcomes: `trace`, `fitted`, `constant`."""

    @property
    def described(self) -> str:
        """Where the tokens come from, for the report."""
        ...

    @property
    def is_text(self) -> bool:
        """Do the tokens stand for words, so that answers can be judged?"""
        ...

    def queries(self, asked: Sequence[Asked], decoding: Decoding, seed: int) -> list[Query]:
        """The workload's requests in this source's tokens; raises ValueError for decoding that it does not know."""
        ...

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> Opened:
        """Engines for these requests under this policy; raises ValueError for a request that it does not know."""
        ...


def described(rule: Exit | None) -> str:
    """A rule of early exit, for people."""
    if rule is None:
        return "running all layers"
    checks = f", the first {rule.checks} of these" if rule.checks else ""
    return f"leaving at a {rule.score} above {rule.above:g} in the last {rule.last:g} of the layers{checks}"


def check_exit(recorded: Exit | None, policy: Policy, source: str) -> None:
    """Raises ValueError where a policy's drafts leave early otherwise than the drafts that `source` knows."""
    wanted = policy.early_exit.layer
    if policy.draft.source == "model" and wanted != recorded:
        raise ValueError(
            f"policy {policy.name} drafts {described(wanted)}, and {source} knows drafts made {described(recorded)}; "
            "record them by the policy's rule (runtime/outcomes=trace, own_trace or fitted does, early_exit: "
            "${policy.early_exit}), or give the policy the rule that is known (policy.early_exit; none runs all layers)"
        )
