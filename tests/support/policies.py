"""Policies by name, made of slot choices by hand, for the fake pair."""

from typing import Any

from serving.learned.medusa import MedusaHeads
from serving.learned.thresholds import Thresholds
from serving.policy.policy import Policy
from serving.policy.slots.dispatch import RoundRobin
from serving.policy.slots.draft import MedusaDraft, NoDraft, WindowDraft
from serving.policy.slots.early_exit import NoEarlyExit, ProgressiveExit
from serving.policy.slots.importance_offload import SyneraOffload
from serving.policy.slots.kv_cache import NoPrefixCaching, PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.lookahead import HATLookahead, NoLookahead, SyneraLookahead
from serving.policy.slots.offload import AlwaysOffload, FullOffload, NeverOffload
from serving.policy.slots.payload import HiddenStatePayload, NoPayload, TokenPayload
from serving.policy.slots.placement import CloudPlacement, DeviceOnlyPlacement, UShapedPlacement
from serving.policy.slots.prefill import OverlappedPrefill, WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch, StaticBatch, VerificationAware
from serving.policy.slots.verify import Lossless, TreeVerify

THRESHOLDS = Thresholds(0.6, 0.7, (0.5, 0.7, 0.9), (0.4, 0.6, 0.8), {}, (1.3, 1.6, 3.0))

MEDUSA = MedusaHeads(4, ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 0, 0)), num_parameters=1)

_COMMON: dict[str, Any] = {
    "draft": WindowDraft(4),
    "offload": AlwaysOffload(),
    "lookahead": NoLookahead(),
    "early_exit": NoEarlyExit(),
    "verify": Lossless(),
    "prefill": WholePrefill(),
    "payload": TokenPayload(),
    "kv_cache": PrefixCaching(),
    "scheduler": ContinuousBatch(),
    "placement": CloudPlacement(),
    "dispatch": RoundRobin(),
    "link_loss": LinkLoss("wait"),
}
POLICIES: dict[str, dict[str, Any]] = {
    "edge_centric": {
        "draft": WindowDraft(1),
        "offload": NeverOffload(),
        "placement": DeviceOnlyPlacement(),
        "payload": NoPayload(),
    },
    "cloud_centric": {"draft": NoDraft(), "offload": FullOffload(), "scheduler": ContinuousBatch(chunk_tokens=16)},
    "sled": {"scheduler": StaticBatch(4, 0.01), "kv_cache": NoPrefixCaching()},
    "synera": {
        "offload": SyneraOffload(0.5, THRESHOLDS),
        "lookahead": SyneraLookahead(THRESHOLDS),
        "early_exit": ProgressiveExit(),
        "scheduler": VerificationAware(),
        "link_loss": LinkLoss("local"),
    },
}
SPLIT_POLICIES: dict[str, dict[str, Any]] = {
    "hat": {
        "draft": WindowDraft(12, "confidence", 0.6),
        "lookahead": HATLookahead(),
        "prefill": OverlappedPrefill(initial_chunk_tokens=8),
        "placement": UShapedPlacement(),
        "payload": HiddenStatePayload(),
    },
    "u_shape": {
        "draft": NoDraft(),
        "prefill": WholePrefill("first"),
        "placement": UShapedPlacement(),
        "payload": HiddenStatePayload(),
    },
    "u_medusa": {
        "draft": MedusaDraft(MEDUSA),
        "verify": TreeVerify(),
        "prefill": WholePrefill("first"),
        "placement": UShapedPlacement(),
        "payload": HiddenStatePayload(),
    },
}


def policy(name: str, **override: Any) -> Policy:
    return Policy(name=name, **(_COMMON | (POLICIES | SPLIT_POLICIES)[name] | override))
