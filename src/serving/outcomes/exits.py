"""Whose drafts left layers early when outcomes were recorded, and whether a policy wants the same."""

from serving.messages import Exit
from serving.policy.policy import Policy


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
