"""The policy under which trajectories are made and routers are tried."""

from __future__ import annotations

from dataclasses import replace

from serving.outcomes.record import target_alone
from serving.policy.policy import Policy
from serving.policy.slots.draft import Window
from serving.policy.slots.offload import Offload
from serving.policy.slots.verify import Replace


def routing(offload: Offload) -> Policy:
    """Device and cloud by turns, as `offload` decides token by token."""
    return replace(target_alone(), name="routing", draft=Window(1), offload=offload, verify=Replace())
