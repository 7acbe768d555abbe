"""A policy: one choice for each slot. Combinations that do not work together are refused here, before any work."""

from dataclasses import dataclass, field

from serving.core.scores import NO_SCORERS, ScoredChoice, Scorers, by_name
from serving.hardware.payload_size import HiddenDtype
from serving.learned.medusa import MedusaHeads
from serving.policy.slots.dispatch import Dispatch
from serving.policy.slots.draft import Draft
from serving.policy.slots.early_exit import EarlyExit
from serving.policy.slots.kv_cache import BLOCK_TOKENS, KvCache
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.lookahead import Lookahead
from serving.policy.slots.offload import Offload
from serving.policy.slots.payload import HiddenStatePayload, Payload
from serving.policy.slots.placement import DEVICE_TIER, Placement
from serving.policy.slots.prefill import Prefill
from serving.policy.slots.scheduler import Scheduler
from serving.policy.slots.verify import TreeVerify, Verify


@dataclass(frozen=True)
class EngineRequirements:
    """What a policy needs from the engines that serve it."""

    scorers: Scorers = field(default_factory=lambda: NO_SCORERS)
    """Trained scores that the draft model's engine computes."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens of a KV cache block."""
    hidden_dtype: HiddenDtype = "fp16"
    """Number format of hidden states that leave a span of layers."""
    medusa: MedusaHeads | None = None
    """Medusa heads on the target's last span, if they draft."""
    verifies_drafts: bool = False
    """True if drafts are sent to be verified."""


NO_REQUIREMENTS = EngineRequirements()


_PLACEHOLDER_LAYERS = 1024
"""Layers assumed to get a placement's hops before the model is known."""


@dataclass(frozen=True)
class Policy:
    name: str
    draft: Draft
    offload: Offload
    lookahead: Lookahead
    early_exit: EarlyExit
    verify: Verify
    prefill: Prefill
    payload: Payload
    kv_cache: KvCache
    scheduler: Scheduler
    placement: Placement
    dispatch: Dispatch
    link_loss: LinkLoss

    def __post_init__(self) -> None:
        for broken, why in self._rules():
            if broken:
                raise ValueError(f"policy {self.name}: {why}")

    def _rules(self) -> list[tuple[bool, str]]:
        hops = self.placement.hops(_PLACEHOLDER_LAYERS, _PLACEHOLDER_LAYERS)
        drafts, scope, tree = self.draft.source == "model", self.offload.scope, isinstance(self.verify, TreeVerify)
        offload, draft = type(self.offload).__name__, self.draft.source
        return [
            (not hops and scope != "none", f"no target is placed anywhere, so offload must be never; it is {offload}"),
            (
                scope == "none" and not drafts,
                f"offload=never leaves the text to the device, and draft={draft} writes none",
            ),
            (
                scope == "some" and not drafts,
                f"offload={offload} decides on a draft, and draft={draft} makes none; choose a drafter, "
                "or offload=always or full",
            ),
            (scope == "full" and drafts, "offload=full would throw every draft away; choose draft=none"),
            (
                self.lookahead.max_steps > 0 and not drafts,
                f"lookahead={type(self.lookahead).__name__} drafts ahead; draft={draft} cannot",
            ),
            (
                self.early_exit.has_sequence_exit and not drafts,
                f"early_exit leaves the tail to the device; draft={draft} cannot write it",
            ),
            (
                self.link_loss.action == "local" and not drafts,
                f"link_loss=local needs a drafter on the device, and draft={draft}; choose wait or fail",
            ),
            (
                not self.kv_cache.keeps_prefixes and any(not hop.span.embedding for hop in hops),
                "kv_cache=none computes a session anew from its tokens, and a later hop has only hidden states",
            ),
            (
                scope == "full" and any(hop.node == DEVICE_TIER for hop in hops),
                "offload=full needs a route that does not come back to the device",
            ),
            (
                (draft == "medusa") != tree,
                f"draft={draft} and verify={type(self.verify).__name__} do not go together: Medusa heads draft trees, "
                "which only verify=tree judges, and no other drafter makes any",
            ),
            (
                any(hop.node == DEVICE_TIER for hop in hops) and not isinstance(self.payload, HiddenStatePayload),
                "placement=u_shape sends hidden states alone; choose payload=hidden_states",
            ),
            (
                isinstance(self.payload, HiddenStatePayload)
                and bool(hops)
                and not any(hop.node == DEVICE_TIER for hop in hops),
                "payload=hidden_states needs a placement that embeds on the device (u_shape); this one wants tokens",
            ),
        ]

    @property
    def requested_scores(self) -> tuple[str, ...]:
        """Scores that the device's slots read; the draft model's forward pass computes them."""
        slots = (self.draft, self.offload, self.lookahead)
        return tuple(sorted({*self.scorers, *(name for slot in slots for name in slot.requested_scores)}))

    @property
    def scorers(self) -> Scorers:
        """The trained scores that its slots bring. Those still to be trained are missing while a run is planned."""
        return scorers_of(self.draft, self.offload, self.lookahead)

    @property
    def monitors_link(self) -> bool:
        """True if a slot needs measurements of the link and the cloud."""
        return self.prefill.monitors_link or self.lookahead.monitors_link

    @property
    def engine_requirements(self) -> EngineRequirements:
        verifies = self.verify.sends_drafts and self.draft.source != "none" and self.offload.scope != "none"
        return EngineRequirements(
            self.scorers, self.kv_cache.block_tokens, self.payload.hidden_dtype, self.draft.medusa, verifies
        )

    @property
    def lossless(self) -> bool:
        """True if every token is the target's own, so that the policy changes the speed but not the text."""
        return (
            self.offload.scope in ("all", "full") and self.verify.sends_drafts and not self.early_exit.has_sequence_exit
        )


def scorers_of(*slots: object) -> Scorers:
    """The trained scores that these slot choices bring."""
    found = [slot.scorer for slot in slots if isinstance(slot, ScoredChoice)]
    return by_name(each for each in found if hasattr(each, "probability"))
