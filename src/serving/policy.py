"""A policy is a row of choices, one per slot; what does not go together is refused here, before any work."""

from dataclasses import dataclass

from serving.scores import Scorers
from serving.slots.dispatch import Dispatch
from serving.slots.draft import Draft
from serving.slots.early_exit import EarlyExit
from serving.slots.exchange import Exchange
from serving.slots.kv_cache import KvCache
from serving.slots.link_loss import LinkLoss
from serving.slots.offload import Offload
from serving.slots.placement import Placement
from serving.slots.prefill import Prefill
from serving.slots.scheduler import Scheduler
from serving.slots.verify import Verify
from serving.slots.waiting import Waiting

_ANY_DEPTH = 8
"""A depth to ask a placement for its shape before a model is known."""


@dataclass(frozen=True)
class Policy:
    name: str
    draft: Draft
    offload: Offload
    waiting: Waiting
    early_exit: EarlyExit
    verify: Verify
    prefill: Prefill
    exchange: Exchange
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
        drafts, hops, reach = self.draft.source == "model", self.placement.route(_ANY_DEPTH), self.offload.reach
        offload, draft = type(self.offload).__name__, self.draft.source
        return [
            (not hops and reach != "none", f"no target is placed anywhere, so offload must be never; it is {offload}"),
            (
                reach == "none" and not drafts,
                f"offload=never leaves the text to the device, and draft={draft} writes none",
            ),
            (
                reach == "some" and not drafts,
                f"offload={offload} decides on a draft, and draft={draft} makes none; choose draft, always or handover",
            ),
            (reach == "handover" and drafts, "offload=handover would throw every draft away; choose draft=none"),
            (
                self.waiting.steps > 0 and not drafts,
                f"waiting={type(self.waiting).__name__} drafts ahead; draft={draft} cannot",
            ),
            (
                self.early_exit.has_tail and not drafts,
                f"early_exit leaves the tail to the device; draft={draft} cannot write it",
            ),
            (
                self.link_loss.action == "local" and not drafts,
                f"link_loss=local needs a drafter on the device, and draft={draft}; choose wait or fail",
            ),
            (
                not self.kv_cache.keep and any(not hop.span.embed for hop in hops),
                "kv_cache=none computes a session anew from its tokens, and a later hop has only hidden states",
            ),
            (
                reach == "handover" and any(hop.node == "here" for hop in hops),
                "offload=handover needs a route that does not come back to the device",
            ),
        ]

    @property
    def probes(self) -> tuple[str, ...]:
        """Scores that the device's slots need, computed inside the drafter's forward."""
        return tuple(sorted({*self.draft.probes, *self.offload.probes, *self.waiting.probes}))

    @property
    def scorers(self) -> Scorers:
        """The trained ones among them."""
        return self.draft.scorers

    @property
    def lossless(self) -> bool:
        """Is every token the target's own? Then speed differs between policies, and text does not."""
        return self.offload.reach in ("all", "handover") and self.verify.send and not self.early_exit.has_tail
