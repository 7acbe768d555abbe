"""A policy: one choice for each slot. Combinations that do not work together are refused here, before any work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from serving.core.decoding import Decoding
from serving.core.scores import IMPORTANCE, NO_SCORERS, ScoredChoice, Scorers, by_name
from serving.hardware.payload_size import HiddenDtype
from serving.learned.medusa import MedusaHeads
from serving.messages import DraftStopRule, Hop
from serving.policy.slots.dispatch import Dispatch
from serving.policy.slots.draft import Draft, GoodputDraft, NoDraft, TreeDraft, drafts_trees
from serving.policy.slots.early_exit import EarlyExit, NoEarlyExit
from serving.policy.slots.kv_cache import BLOCK_TOKENS, KvCache
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.lookahead import Lookahead, TreeLookahead
from serving.policy.slots.offload import FullOffload, Offload, check_scope
from serving.policy.slots.payload import HiddenStatePayload, Payload
from serving.policy.slots.placement import DEVICE_TIER, CloudPlacement, ColocatedPlacement, Placement, UShapedPlacement
from serving.policy.slots.prefill import Prefill, WholePrefill
from serving.policy.slots.scheduler import Scheduler
from serving.policy.slots.verify import Lossless, TreeVerify, Verify

if TYPE_CHECKING:
    from serving.engines.models import ModelPair
    from serving.hardware.testbed import Testbed
    from serving.network.link import Link
    from serving.workload.workload import Workload


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
    drafter: bool = True
    """True if the device's model is run."""
    batch_invariant: bool = False
    """True if what the target computes for a token may not depend on the other tokens of a pass."""
    packed_weights: bool = True
    """True if layers are fused, and on a CPU have their weights packed once."""
    cuda_graphs: bool = True
    """True if passes of few tokens are replayed as CUDA graphs on a GPU."""
    sessions: int | None = None
    """Sessions that are served at a time at most; None: many."""

    @property
    def drafter_rows(self) -> int | None:
        """Rows of a pass of the draft model at most, behind a prompt; None: many."""
        return self.sessions

    @property
    def target_rows(self) -> int | None:
        """Rows of a pass of the large model at most, behind a prompt; None: many."""
        return None if self.verifies_drafts or self.batch_invariant else self.sessions

    def with_decoding(self, decoding: Decoding) -> "EngineRequirements":
        """The same, computing as `decoding` says."""
        return replace(
            self,
            batch_invariant=decoding.exact,
            packed_weights=decoding.packed_weights,
            cuda_graphs=decoding.cuda_graphs,
        )


NO_REQUIREMENTS = EngineRequirements()


_PLACEHOLDER_LAYERS = 1024
"""Layers assumed to get a placement's hops before the model is known."""


class SlotConflictError(ValueError):
    """Choices of slots that do not work together.

    Args:
        why: has {SLOT} for a slot with its choice.
        names: slot -> its choice's name.
    """

    def __init__(self, policy: str, why: str, names: Mapping[str, str]) -> None:
        self.policy, self.why, self.names = policy, why, names
        chosen = {slot: f"policy/{slot}={name}" for slot, name in names.items()}
        super().__init__(f"policy {policy}: {why.format_map(chosen)}")

    def with_names(self, names: Mapping[str, str]) -> "SlotConflictError":
        """The same with these names in place of classes, as far as they are known."""
        return SlotConflictError(self.policy, self.why, {**self.names, **names})


def _class_name(choice: object) -> str:
    """A choice's name where configuration's is not known."""
    return str(getattr(choice, "action", type(choice).__name__))


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
    batch_drafts: bool = False
    """True: a device that serves several sessions drafts for all that wait in one forward. False: one by one."""

    def __post_init__(self) -> None:
        check_scope(self.offload)
        for broken, why in self._rules():
            if broken:
                raise SlotConflictError(
                    self.name, why, {slot: _class_name(choice) for slot, choice in vars(self).items()}
                )

    def _rules(self) -> list[tuple[bool, str]]:
        """(broken, why); braces name a slot, with its choice."""
        hops = self.placement.hops(_PLACEHOLDER_LAYERS, _PLACEHOLDER_LAYERS)
        drafts, scope = self.draft.source == "model", self.offload.scope
        on_device, hidden = any(hop.node == DEVICE_TIER for hop in hops), isinstance(self.payload, HiddenStatePayload)
        return [
            (
                not hops and scope != "none",
                "{placement} places the large model nowhere, and {offload} asks it; choose policy/offload=never",
            ),
            (scope == "none" and not drafts, "{offload} leaves the text to the device, and {draft} writes none"),
            (
                scope == "some" and not drafts,
                "{offload} decides on a draft, and {draft} makes none on the device; choose a drafter, or "
                "policy/offload=always or full",
            ),
            (
                scope == "full" and drafts,
                "{offload} would throw every draft of {draft} away; choose policy/draft=none",
            ),
            (self.lookahead.max_steps > 0 and not drafts, "{lookahead} drafts ahead; {draft} cannot"),
            (
                self.early_exit.has_sequence_exit and not drafts,
                "{early_exit} leaves the tail to the device; {draft} cannot write it",
            ),
            (
                self.link_loss.action == "local" and not drafts,
                "{link_loss} needs a drafter on the device, and {draft} is none; choose policy/link_loss=wait or fail",
            ),
            *self._rules_of_caches(hops),
            (
                scope == "full" and on_device,
                "{offload} needs a route that does not come back to the device, as that of {placement} does",
            ),
            (
                self.batch_drafts and self.early_exit.layer_exit is not None,
                "{early_exit} ends a token's pass before the last layer, and batched drafts run all layers in one "
                "forward; choose policy/early_exit=none, or policy.batch_drafts=false",
            ),
            (
                self.batch_drafts and any(name.startswith(IMPORTANCE) for name in self.offload.requested_scores),
                "{offload} reads importance, which a batch of drafts does not collect; choose "
                "policy.batch_drafts=false",
            ),
            *self._rules_of_cloud_drafts(),
            (
                isinstance(self.draft, GoodputDraft) and not self.is_colocated,
                "{draft} weighs drafts against the target's passes in the same server, and {placement} has the target "
                "elsewhere; choose policy/draft=window",
            ),
            *self._rules_of_trees(),
            (on_device and not hidden, "{placement} sends hidden states alone; choose policy/payload=hidden_states"),
            (
                hidden and bool(hops) and not on_device,
                "{payload} needs a placement that embeds on the device (policy/placement=u_shape); {placement} wants "
                "tokens",
            ),
        ]

    def _rules_of_caches(self, hops: Sequence[Hop]) -> list[tuple[bool, str]]:
        """As `_rules`: which caches there are to keep, to copy and to move."""
        on_device = any(hop.node == DEVICE_TIER for hop in hops)
        return [
            (
                not self.kv_cache.keeps_prefixes and any(not hop.span.embedding for hop in hops),
                "{kv_cache} computes a session anew from its tokens, and a later hop of {placement} has only hidden "
                "states",
            ),
            (
                self.kv_cache.idle_sessions is not None
                and not (len(hops) == 1 and hops[0].span.lm_head and not on_device),
                "{kv_cache} copies the caches of whole texts, and {placement} splits the large model or has none; "
                "choose policy/kv_cache=reuse",
            ),
            (
                self.kv_cache.device_idle_sessions > 0 and (on_device or not self.drafts_on_device),
                "{kv_cache} keeps the caches of a draft model that runs whole on a device (device_idle_sessions), and "
                "with {draft} and {placement} there is none; choose policy/kv_cache=shared or reuse",
            ),
        ]

    def _rules_of_trees(self) -> list[tuple[bool, str]]:
        """As `_rules`: what drafts that are trees cannot do."""
        trees, grown = drafts_trees(self.draft), isinstance(self.draft, TreeDraft)
        judged = isinstance(self.verify, TreeVerify)
        return [
            (trees and not judged, "{draft} makes trees; {verify} judges chains; choose policy/verify=tree"),
            (
                judged and not trees,
                "{draft} makes chains; {verify} judges trees, which policy/draft=tree, tree_lookup or medusa makes",
            ),
            (
                grown and self.early_exit.layer_exit is not None,
                "{early_exit} ends a token's pass before the last layer, and {draft} runs all nodes of a level in one "
                "forward; choose policy/early_exit=none or sequence_wise",
            ),
            (
                grown and self.lookahead.max_steps > 0 and not isinstance(self.lookahead, TreeLookahead),
                "{lookahead} drafts behind chains, and {draft} makes trees; choose policy/lookahead=tree or none",
            ),
            (
                isinstance(self.lookahead, TreeLookahead) and not grown,
                "{lookahead} grows trees, and {draft} drafts none; choose policy/draft=tree, or another lookahead",
            ),
            (
                grown and self.offload.scope == "some",
                "{offload} decides by the scores of a chain, and {draft} makes trees; choose policy/offload=always",
            ),
        ]

    def _rules_of_cloud_drafts(self) -> list[tuple[bool, str]]:
        """As `_rules`: what a server that drafts itself cannot do."""
        if not self.is_colocated:
            return []
        return [
            (
                self.draft.source == "none",
                "{placement} drafts in the cloud, and {draft} drafts nothing; choose policy/placement=cloud, or what "
                "drafts",
            ),
            (
                self.drafts_apart and self.draft.source != "model",
                "{placement} has chips for a draft model, and {draft} has none; choose policy.placement.drafter=shared",
            ),
            (
                self.offload.scope != "all",
                "{placement} has every draft verified on the spot, and {offload} has not; choose policy/offload=always",
            ),
            (
                self.early_exit.has_sequence_exit,
                "{early_exit} leaves the tail to the device, and {placement} has no drafter there; choose "
                "policy/early_exit=none or layer_wise",
            ),
            (
                self.lookahead.max_steps > 0,
                "{lookahead} drafts while a verdict is awaited, and under {placement} the chip verifies then; choose "
                "policy/lookahead=none",
            ),
            (
                self.link_loss.action == "local",
                "{link_loss} needs a drafter on the device, and {placement} keeps it in the cloud; choose "
                "policy/link_loss=wait or fail",
            ),
            (
                self.dispatch.needs_load_reports or self.prefill.monitors_link or self.lookahead.monitors_link,
                "under {placement} nodes send no measurements, which {dispatch}, {prefill} or {lookahead} reads; "
                "choose policy/dispatch=round_robin, affinity or random, policy/prefill=whole, policy/lookahead=none",
            ),
        ]

    def on_testbed(
        self,
        pair: "ModelPair",  # noqa: ARG002
        hardware: "Testbed",  # noqa: ARG002
        network: "Link",  # noqa: ARG002
        workload: "Workload",  # noqa: ARG002
    ) -> "Policy":
        """What the policy is on a testbed: itself, unless it is one by condition."""
        return self

    @property
    def settled(self) -> "Policy":
        """This policy, fixed: on a testbed of other speeds `on_testbed` chooses nothing anew."""
        return self

    @property
    def is_colocated(self) -> bool:
        """True if what drafts runs beside the target."""
        return isinstance(self.placement, ColocatedPlacement)

    @property
    def drafts_on_device(self) -> bool:
        """True if a draft model runs on users' devices."""
        return self.draft.source == "model" and not self.is_colocated

    @property
    def drafts_in_cloud(self) -> bool:
        """True if a draft model runs beside the target."""
        return self.draft.source == "model" and self.is_colocated

    @property
    def drafts_apart(self) -> bool:
        """True if the draft model has chips of its own in the cloud."""
        return isinstance(self.placement, ColocatedPlacement) and self.placement.drafter == "apart"

    @cached_property
    def on_device(self) -> "Policy":
        """What users' devices do: all of it, or nothing but ask where the cloud drafts."""
        if not isinstance(self.placement, ColocatedPlacement):
            return self
        return replace(
            self, draft=NoDraft(), offload=FullOffload(), early_exit=NoEarlyExit(), verify=Lossless(),
            prefill=WholePrefill(), placement=CloudPlacement(self.placement.tier), batch_drafts=False,
        )  # fmt: skip

    @property
    def lookahead_tree(self) -> DraftStopRule | None:
        """How the tree grows that is drafted ahead; None: none is."""
        ahead = isinstance(self.lookahead, TreeLookahead) and isinstance(self.draft, TreeDraft)
        return self.draft.stop_rule if ahead and isinstance(self.draft, TreeDraft) else None

    @cached_property
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
    def streams_download(self) -> bool:
        """True if a prompt's hidden states are sent to the device part by part, not together at the prompt's end."""
        return not isinstance(self.placement, UShapedPlacement) or self.placement.stream_download

    @property
    def engine_requirements(self) -> EngineRequirements:
        verifies = self.verify.sends_drafts and self.draft.source != "none" and self.offload.scope != "none"
        return EngineRequirements(
            self.scorers, self.kv_cache.block_tokens, self.payload.hidden_dtype, self.draft.medusa, verifies,
            drafter=self.draft.source == "model",
        )  # fmt: skip

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
