"""What a policy asks of the engines that serve it."""

from dataclasses import dataclass, field

from serving.core.scores import UNTRAINED, Scorers
from serving.hardware.payload_size import Number
from serving.learned.medusa import Medusa
from serving.policy.slots.kv_cache import BLOCK_TOKENS


@dataclass(frozen=True)
class Provision:
    scorers: Scorers = field(default_factory=lambda: UNTRAINED)
    """Trained scores that the drafter computes."""
    block_tokens: int = BLOCK_TOKENS
    """Of the KV caches."""
    number: Number = "fp16"
    """In which hidden states leave a span of layers."""
    medusa: Medusa | None = None
    """Heads that draft where the target's head is."""
    verifies: bool = False
    """Do drafts travel, for a verdict?"""


PLAIN = Provision()
