"""What a policy asks of the engines that serve it."""

from dataclasses import dataclass, field

from serving.core.scores import NO_SCORERS, Scorers
from serving.hardware.payload_size import HiddenDtype
from serving.learned.medusa import MedusaHeads
from serving.policy.slots.kv_cache import BLOCK_TOKENS


@dataclass(frozen=True)
class EngineRequirements:
    scorers: Scorers = field(default_factory=lambda: NO_SCORERS)
    """Trained scores that the drafter computes."""
    block_tokens: int = BLOCK_TOKENS
    """Of the KV caches."""
    hidden_dtype: HiddenDtype = "fp16"
    """In which hidden states leave a span of layers."""
    medusa: MedusaHeads | None = None
    """Heads that draft where the target's head is."""
    verifies_drafts: bool = False
    """Do drafts travel, for a verdict?"""


NO_REQUIREMENTS = EngineRequirements()
