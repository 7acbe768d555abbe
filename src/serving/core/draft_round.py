"""A round of speculation as its device measures it, and what learns from rounds."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class DraftRound(NamedTuple):
    """A draft that was sent, and its verdict."""

    num_drafts: int
    accepted: int
    draft_s: float
    """From the verdict before, or the last token, until the draft was sent: the device's drafting, and its queue."""
    away_s: float
    """From then until the verdict: the network both ways, queues, and the verification."""
    confidence: Sequence[float] = ()
    """Of each draft; empty if the policy does not ask for it."""


class RoundLearner(Protocol):
    """What a device learns from the rounds of all its sessions. It has no clock and no random numbers."""

    def record(self, done: DraftRound) -> None: ...
