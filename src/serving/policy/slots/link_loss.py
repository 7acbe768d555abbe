"""Slot `link_loss`: what a device does when the cloud is gone."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LinkLoss:
    """local: carry on alone and say so; wait: until it is back; fail: say so and end."""

    action: Literal["local", "wait", "fail"]
