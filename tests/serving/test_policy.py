"""What goes together in a policy, and what is refused with which words."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from fake_world import ROWS, policy

from serving.core.session import Session
from serving.messages import Call, Exit, Hop, Span
from serving.policy.slots.draft import NoDraft, Window
from serving.policy.slots.early_exit import Layers, NoExit, Progressive, Tail
from serving.policy.slots.kv_cache import NoReuse, Reuse
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.offload import Handover, Never
from serving.policy.slots.placement import DeviceOnly
from serving.policy.slots.prefill import Parts
from serving.policy.slots.verify import Replace


@dataclass(frozen=True)
class Ahead:
    """A waiting choice that drafts."""

    steps: ClassVar[int] = 2
    probes: ClassVar[tuple[str, ...]] = ("margin",)
    monitors: ClassVar[bool] = False

    def limit(self, s: object) -> int:
        return self.steps

    def guesses(self, s: object) -> tuple[()]:
        return ()


@dataclass(frozen=True)
class UShape:
    """A route that begins on the device and comes back to it."""

    def route(self, layers: int, depth: int) -> tuple[Hop, ...]:
        return (
            Hop("here", Span(0, 2, embed=True)),
            Hop("cloud", Span(2, layers)),
            Hop("here", Span(layers, layers, head=True)),
        )


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no target, but somebody is asked": (
        "sled",
        {"placement": DeviceOnly()},
        "no target is placed anywhere, so offload must be never; it is Always",
    ),
    "nobody writes": (
        "edge_centric",
        {"draft": NoDraft()},
        "offload=never leaves the text to the device, and draft=none writes none",
    ),
    "no draft to decide on": ("synera", {"draft": NoDraft()}, "decides on a draft, and draft=none makes none"),
    "drafts thrown away": (
        "cloud_centric",
        {"draft": Window(4)},
        "offload=handover would throw every draft away; choose draft=none",
    ),
    "look-ahead without a drafter": (
        "cloud_centric",
        {"waiting": Ahead()},
        "waiting=Ahead drafts ahead; draft=none cannot",
    ),
    "a tail without a drafter": (
        "cloud_centric",
        {"early_exit": Tail(0.8)},
        "early_exit leaves the tail to the device; draft=none cannot write it",
    ),
    "alone without a drafter": (
        "cloud_centric",
        {"link_loss": LinkLoss("local")},
        "link_loss=local needs a drafter on the device, and draft=none",
    ),
    "no cache for hidden states": (
        "sled",
        {"placement": UShape()},
        "kv_cache=none computes a session anew from its tokens",
    ),
    "a loop over the device": (
        "cloud_centric",
        {"placement": UShape()},
        "offload=handover needs a route that does not come back",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused(case: str) -> None:
    name, override, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"policy {name}: .*{message}"):
        policy(name, **override)


@pytest.mark.parametrize("name", ROWS)
def test_the_papers_rows_go_together(name: str) -> None:
    assert policy(name).name == name


def test_probes_are_what_the_slots_need() -> None:
    assert policy("sled").probes == ()
    assert policy("sled", draft=Window(4, "entropy", 0.5), waiting=Ahead()).probes == ("entropy", "margin")
    assert policy("synera").probes == ("confidence", "importance")


@pytest.mark.parametrize(
    ("name", "override", "lossless"),
    [
        ("sled", {}, True),
        ("cloud_centric", {}, True),
        ("sled", {"verify": Replace()}, False),
        ("sled", {"early_exit": Tail(0.8)}, False),
        ("sled", {"offload": Never()}, False),
        ("synera", {}, False),
    ],
)
def test_what_claims_to_be_the_targets_own_text(name: str, override: dict[str, Any], lossless: bool) -> None:
    assert policy(name, **override).lossless is lossless


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Window(0), "policy.draft.k is 0; a window holds at least 1 token"),
        (lambda: Window(4, "margin"), r"score='margin' and below=0.0 go together: name both or neither"),
        (lambda: Window(4, below=0.5), "score='' and below=0.5 go together"),
        (lambda: Parts(0), "policy.prefill.rows is 0; a part holds at least 1 token"),
        (lambda: Reuse(0.5), "policy.kv_cache.capacity_tokens is 0.5; give at least 1"),
        (lambda: Reuse(block_tokens=0), "policy.kv_cache.block_tokens is 0; give at least 1"),
        (lambda: Tail(1.5), "policy.early_exit.after is 1.5; it is a share of max_new_tokens: 0 to 1"),
        (lambda: Tail(-0.5), "policy.early_exit.after is -0.5"),
        (lambda: Layers(1.5), "policy.early_exit.margin is 1.5; it is a difference of probabilities: 0 to 1"),
        (lambda: Layers(-0.1), "policy.early_exit.margin is -0.1"),
        (lambda: Layers(last=0.0), "policy.early_exit.last is 0.0; it is a share of the layers: above 0, below 1"),
        (lambda: Layers(last=1.0), "policy.early_exit.last is 1.0"),
        (lambda: Layers(checks=0), "policy.early_exit.checks is 0; check after at least 1 layer, or null for all"),
        (lambda: Progressive(after=1.5), "policy.early_exit.after is 1.5"),
        (lambda: Progressive(margin=1.5), "policy.early_exit.margin is 1.5"),
    ],
)
def test_options_out_of_range_are_refused(build: type, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_no_reuse_has_no_budget_and_handover_no_drafts() -> None:
    assert (NoReuse().capacity_tokens, NoReuse().keep, Handover().reach) == (None, False, "handover")


def test_what_of_the_drafter_is_skipped() -> None:
    """Synera, section 4.3: a margin of 0.7 in the last quarter of the layers, and no offloading after 0.8 of all."""
    assert (NoExit().layer, Tail(0.8).layer) == (None, None)
    assert Layers().layer == Progressive().layer == Exit("margin", 0.7, 0.25, 0)
    assert Layers(0.5, 0.5, 1).layer == Exit("margin", 0.5, 0.5, 1)
    assert [choice.has_tail for choice in (NoExit(), Layers(), Tail(0.8), Progressive())] == [False, False, True, True]


@pytest.mark.parametrize("choice", [Tail(0.8), Progressive()])
@pytest.mark.parametrize(("written", "over"), [(0, False), (8, False), (9, True), (10, True)])
def test_the_tail_begins_behind_its_share(choice: Tail | Progressive, written: int, over: bool) -> None:
    s = Session(Call("s", (1, 2, 3), 10), 0)
    s.tokens += range(written)
    assert choice.tail(s) is over
    assert not Layers().tail(s)
