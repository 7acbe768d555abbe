"""Valid policies, and the errors of incompatible slot choices."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from serving.core.session import Session
from serving.messages import EarlyExitRule, GenerationRequest, Hop, Span
from serving.policy.slots.dispatch import HypSched
from serving.policy.slots.draft import NoDraft, WindowDraft
from serving.policy.slots.early_exit import LayerwiseExit, NoEarlyExit, ProgressiveExit, SequencewiseExit
from serving.policy.slots.importance_offload import SyneraOffload
from serving.policy.slots.kv_cache import NoPrefixCaching, PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.lookahead import SyneraLookahead
from serving.policy.slots.offload import AlwaysOffload, FullOffload, NeverOffload
from serving.policy.slots.placement import ColocatedPlacement, DeviceOnlyPlacement
from serving.policy.slots.prefill import ChunkedPrefill
from serving.policy.slots.verify import Replace
from tests.support.policies import POLICIES, THRESHOLDS, policy


@dataclass(frozen=True)
class Ahead:
    """A waiting choice that drafts."""

    max_steps: ClassVar[int] = 2
    requested_scores: ClassVar[tuple[str, ...]] = ("margin",)
    monitors_link: ClassVar[bool] = False

    def num_steps(self, s: object) -> int:
        return self.max_steps

    def assumed_verdicts(self, s: object) -> tuple[()]:
        return ()


@dataclass(frozen=True)
class UShape:
    """A route that begins on the device and comes back to it."""

    def hops(self, layers: int, depth: int) -> tuple[Hop, ...]:
        return (
            Hop("here", Span(0, 2, embedding=True)),
            Hop("cloud", Span(2, layers)),
            Hop("here", Span(layers, layers, lm_head=True)),
        )


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no target, but drafts are offloaded": (
        "sled",
        {"placement": DeviceOnlyPlacement()},
        "policy/placement=DeviceOnlyPlacement places the large model nowhere, and policy/offload=AlwaysOffload asks it",
    ),
    "neither model writes": (
        "edge_centric",
        {"draft": NoDraft()},
        "policy/offload=NeverOffload leaves the text to the device, and policy/draft=NoDraft writes none",
    ),
    "a server that drafts, without drafts": (
        "cloud_centric",
        {"placement": ColocatedPlacement()},
        "policy/placement=ColocatedPlacement drafts in the cloud, and policy/draft=NoDraft drafts nothing",
    ),
    "a server that drafts ahead": (
        "sled",
        {"placement": ColocatedPlacement(), "lookahead": SyneraLookahead(THRESHOLDS)},
        "policy/lookahead=SyneraLookahead drafts while a verdict is awaited, and under .* the chip verifies then",
    ),
    "a server that keeps drafts without verification": (
        "sled",
        {"placement": ColocatedPlacement(), "offload": SyneraOffload(0.5, THRESHOLDS)},
        "policy/placement=ColocatedPlacement has every draft verified on the spot, and policy/offload=SyneraOffload",
    ),
    "a server that verifies nothing": (
        "sled",
        {"placement": ColocatedPlacement(), "offload": NeverOffload()},
        "policy/placement=ColocatedPlacement has every draft verified on the spot, and policy/offload=NeverOffload",
    ),
    "a server that leaves the tail to the device": (
        "sled",
        {"placement": ColocatedPlacement(), "early_exit": SequencewiseExit(0.8)},
        "policy/early_exit=SequencewiseExit leaves the tail to the device, and .* has no drafter there",
    ),
    "a server that drafts, offline": (
        "sled",
        {"placement": ColocatedPlacement(), "link_loss": LinkLoss("local")},
        "policy/link_loss=local needs a drafter on the device",
    ),
    "a server that drafts, chosen by load": (
        "sled",
        {"placement": ColocatedPlacement(), "dispatch": HypSched()},
        "nodes send no measurements, which policy/dispatch=HypSched",
    ),
    "no draft to decide on": (
        "synera",
        {"draft": NoDraft()},
        "decides on a draft, and policy/draft=NoDraft makes none",
    ),
    "drafts thrown away": (
        "cloud_centric",
        {"draft": WindowDraft(4)},
        "would throw every draft of policy/draft=WindowDraft away; choose policy/draft=none",
    ),
    "look-ahead without a drafter": (
        "cloud_centric",
        {"lookahead": Ahead()},
        "policy/lookahead=Ahead drafts ahead; policy/draft=NoDraft cannot",
    ),
    "a tail without a drafter": (
        "cloud_centric",
        {"early_exit": SequencewiseExit(0.8)},
        "policy/early_exit=SequencewiseExit leaves the tail to the device; policy/draft=NoDraft cannot write it",
    ),
    "alone without a drafter": (
        "cloud_centric",
        {"link_loss": LinkLoss("local")},
        "policy/link_loss=local needs a drafter on the device, and policy/draft=NoDraft is none",
    ),
    "no cache for hidden states": (
        "sled",
        {"placement": UShape()},
        "policy/kv_cache=NoPrefixCaching computes a session anew from its tokens",
    ),
    "a loop over the device": (
        "cloud_centric",
        {"placement": UShape()},
        "policy/offload=FullOffload needs a route that does not come back",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_incompatible_slot_choices_are_refused(case: str) -> None:
    name, override, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"policy {name}: .*{message}"):
        policy(name, **override)


@pytest.mark.parametrize("name", POLICIES)
def test_the_papers_policies_are_valid(name: str) -> None:
    assert policy(name).name == name


def test_requested_scores_are_those_that_the_slots_read() -> None:
    assert policy("sled").requested_scores == ()
    assert policy("sled", draft=WindowDraft(4, "entropy", 0.5), lookahead=Ahead()).requested_scores == (
        "entropy",
        "margin",
    )
    assert policy("synera").requested_scores == ("confidence", "importance")


@pytest.mark.parametrize(
    ("name", "override", "lossless"),
    [
        ("sled", {}, True),
        ("cloud_centric", {}, True),
        ("sled", {"verify": Replace()}, False),
        ("sled", {"early_exit": SequencewiseExit(0.8)}, False),
        ("sled", {"offload": NeverOffload()}, False),
        ("synera", {}, False),
    ],
)
def test_lossless_policies_are_recognised(name: str, override: dict[str, Any], lossless: bool) -> None:
    assert policy(name, **override).lossless is lossless


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WindowDraft(0), "policy.draft.k is 0; a window holds at least 1 token"),
        (lambda: WindowDraft(4, acceptance=1.5), "policy.draft.acceptance is 1.5; it is a share, 0 to 1"),
        (lambda: WindowDraft(4, "margin"), r"score='margin' and threshold=0.0 go together: name both or neither"),
        (lambda: WindowDraft(4, threshold=0.5), "score='' and threshold=0.5 go together"),
        (lambda: ChunkedPrefill(0), "policy.prefill.chunk_tokens is 0; a part holds at least 1 token"),
        (lambda: PrefixCaching(0.5), "policy.kv_cache.capacity_tokens is 0.5; give at least 1"),
        (lambda: PrefixCaching(block_tokens=0), "policy.kv_cache.block_tokens is 0; give at least 1"),
        (lambda: SequencewiseExit(1.5), "early_exit.sequence_fraction is 1.5; it is a share of max_new_tokens: 0 to 1"),
        (lambda: SequencewiseExit(-0.5), "policy.early_exit.sequence_fraction is -0.5"),
        (lambda: LayerwiseExit(1.5), "policy.early_exit.margin is 1.5; it is a difference of probabilities: 0 to 1"),
        (lambda: LayerwiseExit(-0.1), "policy.early_exit.margin is -0.1"),
        (
            lambda: LayerwiseExit(last_share=0.0),
            "policy.early_exit.last_share is 0.0; it is a share of the layers: above 0, below 1",
        ),
        (lambda: LayerwiseExit(last_share=1.0), "policy.early_exit.last_share is 1.0"),
        (
            lambda: LayerwiseExit(max_checks=0),
            "policy.early_exit.max_checks is 0; check after at least 1 layer, or null for all",
        ),
        (lambda: ProgressiveExit(sequence_fraction=1.5), "policy.early_exit.sequence_fraction is 1.5"),
        (lambda: ProgressiveExit(margin=1.5), "policy.early_exit.margin is 1.5"),
    ],
)
def test_options_out_of_range_are_refused(build: type, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_no_prefix_caching_has_no_capacity_and_full_offload_no_drafts() -> None:
    assert (NoPrefixCaching().capacity_tokens, NoPrefixCaching().keeps_prefixes, FullOffload().scope) == (
        None,
        False,
        "full",
    )


def test_early_exit_rules_are_those_of_synera() -> None:
    """Synera, section 4.3: a margin of 0.7 in the last quarter of the layers, and no offloading after 0.8 of all."""
    assert (NoEarlyExit().layer_exit, SequencewiseExit(0.8).layer_exit) == (None, None)
    assert LayerwiseExit().layer_exit == ProgressiveExit().layer_exit == EarlyExitRule("margin", 0.7, 0.25, 0)
    assert LayerwiseExit(0.5, 0.5, 1).layer_exit == EarlyExitRule("margin", 0.5, 0.5, 1)
    assert [
        choice.has_sequence_exit
        for choice in (NoEarlyExit(), LayerwiseExit(), SequencewiseExit(0.8), ProgressiveExit())
    ] == [False, False, True, True]


@pytest.mark.parametrize("choice", [SequencewiseExit(0.8), ProgressiveExit()])
@pytest.mark.parametrize(("written", "over"), [(0, False), (8, False), (9, True), (10, True)])
def test_the_sequence_exit_is_after_its_fraction(
    choice: SequencewiseExit | ProgressiveExit, written: int, over: bool
) -> None:
    s = Session(GenerationRequest("s", (1, 2, 3), 10), 0)
    s.tokens += range(written)
    assert choice.past_sequence_exit(s) is over
    assert not LayerwiseExit().past_sequence_exit(s)


def test_a_scope_that_does_not_exist_is_refused():
    """Every rule that asks for one would pass over it."""
    with pytest.raises(ValueError, match=r"Sometimes\.scope is 'sometimes'; allowed are none, some, all, full"):
        policy("sled", offload=Sometimes())


class Sometimes(AlwaysOffload):
    scope = "sometimes"  # type: ignore[assignment]
