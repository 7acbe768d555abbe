"""Slot `link_loss`: what a device does when the cloud is not reachable."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LinkLoss:
    """local: continue with the draft model, with origin "offline". wait: until it is back. fail: end the session."""

    action: Literal["local", "wait", "fail"]
