"""What a slot choice may hold."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import pytest

from serving.core.session import Session
from serving.policy.stateless import check_slots, check_stateless
from serving.runtimes.local import Local
from serving.stages import check_serve
from tests.support.fake_setup import setup
from tests.support.policies import policy


@dataclass(frozen=True)
class Slope:
    """Sends a draft that is less sure than the session's last one, which it remembers itself."""

    seen: dict[str, float] = field(default_factory=dict)
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ("margin",)

    def tokens_to_offload(self, session: Session) -> int:
        before, now = self.seen.get(session.request.session, 1.0), min(session.scores["margin"])
        self.seen[session.request.session] = now
        return int(now < before)


def test_a_slot_that_remembers_is_refused_before_any_work() -> None:
    plain = setup()
    own = replace(plain, policy=replace(plain.policy, offload=Slope()))
    with pytest.raises(ValueError, match=r"^policy.offload=Slope holds a dict in seen: one slot object serves all"):
        check_serve(setup=own, runtime=Local())


def held_by(slot: object) -> str:
    with pytest.raises(ValueError, match=r"holds a") as raised:
        check_stateless("offload", slot)
    return str(raised.value).partition(":")[0]


@dataclass(frozen=True)
class Later:
    kept: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept", deque())


class Plain:
    def __init__(self) -> None:
        self._sums = [0.0]


@dataclass(slots=True)
class Slotted:
    counts: set[int] = field(default_factory=lambda: {0})


class OfTheClass:
    past: ClassVar[bytearray] = bytearray()


class Inheriting(OfTheClass):
    pass


@pytest.mark.parametrize(
    ("slot", "message"),
    [
        (Later(), "Later holds a deque in kept"),
        (Plain(), "Plain holds a list in _sums"),
        (Slotted(), "Slotted holds a set in counts"),
        (OfTheClass(), "OfTheClass holds a bytearray in past"),
        (Inheriting(), "Inheriting holds a bytearray in past"),
    ],
)
def test_what_a_class_makes_itself_is_refused_wherever_it_holds_it(slot: object, message: str) -> None:
    assert held_by(slot) == f"policy.offload={message}"


@dataclass(frozen=True)
class Options:
    """Constants, and options as YAML gives them: mappings are dicts."""

    by_task: Mapping[str, float] = field(default_factory=dict)
    maybe: Mapping[str, float] | None = None
    order: Sequence[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({"a": 1}))
    table: ClassVar[Mapping[str, int]] = MappingProxyType({"b": 2})
    names: ClassVar[frozenset[str]] = frozenset({"c"})

    @cached_property
    def ordered(self) -> list[str]:
        return sorted(self.by_task)


def test_options_of_the_configuration_and_constants_are_allowed() -> None:
    options = Options(by_task={}, maybe={"d": 1.0}, weights={"e": 0.5}, fixed={"a": 1})
    assert options.ordered == []
    check_stateless("offload", options)


def test_an_option_of_which_the_configuration_says_nothing_is_what_the_class_made() -> None:
    assert held_by(Options(weights={})) == "policy.offload=Options holds a dict in weights"


@pytest.mark.parametrize("name", ["edge_centric", "cloud_centric", "sled", "synera", "hat", "u_medusa"])
def test_the_policies_of_the_tests_hold_no_state(name: str) -> None:
    check_slots(policy(name))
