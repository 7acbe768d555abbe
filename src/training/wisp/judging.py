"""The policy under which drafts are traced: every window is judged, and every score of it is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from serving.core.scores import SCORES
from serving.core.session import Session
from serving.policy.policy import Policy
from serving.policy.slots.draft import Draft
from serving.policy.slots.early_exit import EarlyExit
from training.synera.thresholds import profiling_policy


@dataclass(frozen=True)
class Judged:
    """Every draft is verified, with all that can be told from its logits."""

    reach: ClassVar[Literal["all"]] = "all"
    probes: ClassVar[tuple[str, ...]] = SCORES

    def ask(self, s: Session) -> int:  # noqa: ARG002
        return 1


def judging_policy(draft: Draft, early_exit: EarlyExit) -> Policy:
    """Drafts are written as they will be when they are served, all else is out of the way."""
    return replace(profiling_policy(draft, early_exit), offload=Judged())
