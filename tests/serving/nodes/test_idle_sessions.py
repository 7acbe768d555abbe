"""Turns of a conversation: which caches the next turn reuses, and what is freed without one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from serving.drivers.simulator import ComputeResource
from serving.messages import (
    DraftWork,
    EmitTokens,
    GenerationRequest,
    PeerLost,
    PeerRestored,
    Release,
    Request,
    RequestArrived,
    SendMessage,
    SessionCancelled,
    StartWork,
    WorkFinished,
)
from serving.nodes.device import MAX_IDLE_SESSIONS, Device
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from tests.support.fake_pair import FakePair, own_text
from tests.support.policies import policy
from tests.support.simulated_nodes import World, world

PROMPT = tuple(range(100, 112))
LIMIT = 8


@dataclass
class Talk:
    """One device, one cloud; turns are asked one after the other."""

    w: World

    def turn(self, prompt: tuple[int, ...], session: str = "talk", **how: Any) -> "Turn":
        self.w.log.entries.clear()
        self.say(RequestArrived(GenerationRequest(session, prompt, LIMIT, keep_cache=True, **how)))
        return Turn(self.w, session, prompt)

    def say(self, event: Any) -> None:
        self.w.simulator.post(self.w.simulator.now, "device-0", event)
        self.w.run()

    @property
    def device(self) -> Device:
        node = self.w.nodes["device-0"]
        assert isinstance(node, Device)
        return node

    @property
    def caches(self) -> set[str]:
        """Sessions that any chip holds something of."""
        return {session for chip in self.w.chips.values() for session, _ in chip.caches}

    def restart_cloud(self) -> None:
        self.say(PeerLost("cloud"))
        self.w.nodes["cloud"], self.w.chips["cloud"] = self.w.make["cloud"](), FakePair()
        self.w.simulator.add("cloud", self.w.nodes["cloud"], ComputeResource(self.w.chips["cloud"]))
        self.say(PeerRestored("cloud"))


@dataclass
class Turn:
    w: World
    session: str
    prompt: tuple[int, ...]

    def __post_init__(self) -> None:
        self.text = self.w.text(self.session)
        self.ending = self.w.endings()[self.session]
        self.asked = next(self._starts(SendMessage), None)
        self.drafted = next(self._starts(StartWork), None)

    def _starts(self, kind: type) -> Iterator[int]:
        """The positions at which the work of the cloud, or of the device itself, begins."""
        for command in self.w.log.commands(kind):
            match command:
                case SendMessage(_, Request() as request):
                    yield request.slice.start
                case StartWork(_, DraftWork() as work):
                    yield work.start

    @property
    def right(self) -> bool:
        return (self.text, self.ending) == (own_text(self.prompt, LIMIT), "complete")


def talk(name: str = "sled", **override: Any) -> Talk:
    return Talk(world(policy(name, kv_cache=PrefixCaching(), **override), devices=1, calls_each=0))


def test_a_first_turn_starts_with_empty_caches() -> None:
    first = talk().turn(PROMPT)
    assert (first.asked, first.drafted, first.right) == (0, 0, True)


@pytest.mark.parametrize(
    ("then", "shared"),
    [
        (lambda said: PROMPT + said + (1, 2, 3), len(PROMPT) + LIMIT - 1),  # the last token was never asked about
        (lambda said: PROMPT + said, len(PROMPT) + LIMIT - 1),
        (lambda said: PROMPT + said[:3] + (900, 901), len(PROMPT) + 3),  # the answer as a template repeats it
        (lambda said: (*PROMPT, 900, 901, 902), len(PROMPT)),
        (lambda said: PROMPT, len(PROMPT) - 1),
        (lambda said: (*PROMPT[:5], 900), 5),
        (lambda said: PROMPT[:5], 4),
        (lambda said: (900, *PROMPT), 0),
    ],
)
def test_the_next_turn_starts_where_its_prompt_differs(then: Any, shared: int) -> None:
    t = talk()
    second = t.turn(then(t.turn(PROMPT).text))
    assert second.right
    assert second.asked == shared
    assert second.drafted is not None
    assert shared - 1 <= second.drafted <= shared


def test_many_turns_continue_one_session() -> None:
    t, prompt = talk(), PROMPT
    for number in range(5):
        turn = t.turn(prompt)
        assert turn.right
        assert turn.asked == (len(prompt) - 3 if number else 0)
        prompt += (*turn.text, number, number)


@pytest.mark.parametrize("action", ["wait", "fail", "local"])
def test_a_cloud_that_lost_its_caches_gets_all_tokens_again(action: Any) -> None:
    t = talk(link_loss=LinkLoss(action))
    first = t.turn(PROMPT)
    t.restart_cloud()
    second = t.turn((*PROMPT, *first.text, 7, 8))
    assert second.right


def test_sessions_share_no_caches() -> None:
    t = talk()
    first = t.turn(PROMPT, "a")
    other = t.turn(PROMPT + first.text + (5,), "b")
    assert (other.asked, other.right) == (0, True)


def test_a_conversation_continues_after_a_cancelled_turn() -> None:
    t = talk()
    t.say(RequestArrived(GenerationRequest("talk", PROMPT, LIMIT, keep_cache=True)))
    t.w.log.entries.clear()
    t.w.simulator.post(
        t.w.simulator.now, "device-0", RequestArrived(GenerationRequest("talk", PROMPT, 1000, keep_cache=True))
    )
    t.w.simulator.run(until=t.w.simulator.now + 0.6)
    said = t.w.text("talk")
    assert len(said) > 2
    t.say(SessionCancelled("talk"))
    again = t.turn(PROMPT + said + (4,))
    assert again.right
    assert (again.asked or 0) >= len(PROMPT)


def test_the_cloud_stops_writing_an_answer_that_is_cancelled() -> None:
    w = world(policy("cloud_centric", kv_cache=PrefixCaching()), devices=1, limit=400, keep_cache=True)
    w.simulator.post(1.5, "device-0", SessionCancelled(w.calls[0].session))
    w.run()
    emitted = [c for c in w.log.commands(EmitTokens) if c.tokens]
    assert 0 < sum(len(c.tokens) for c in emitted) < 200
    late = [now for node, event, now, _ in w.log.entries if node == "cloud" and isinstance(event, WorkFinished)]
    assert len([now for now in late if now > 1.5]) <= 2  # the pass that ran when the device's message came


def test_a_cancelled_idle_session_is_freed_on_device_and_cloud() -> None:
    t = talk()
    t.turn(PROMPT)
    assert t.caches == {"talk"}
    t.w.log.entries.clear()
    t.say(SessionCancelled("talk"))
    assert (t.caches, dict(t.device.idle_sessions)) == (set(), {})
    assert [c.message for c in t.w.log.commands(SendMessage)] == [Release("talk")]
    cloud: Any = t.w.nodes["cloud"]
    assert cloud.kv_accounting.used_tokens == 0


def test_a_cancelled_turn_that_waits_is_dropped_and_its_conversation_kept() -> None:
    t = talk()
    t.turn(PROMPT)
    device = t.device
    device.handle(RequestArrived(GenerationRequest("other", PROMPT, LIMIT)), 10.0)
    device.handle(RequestArrived(GenerationRequest("talk", PROMPT, LIMIT, keep_cache=True)), 10.1)
    assert device.handle(SessionCancelled("talk"), 10.2) == [EmitTokens("talk", (), (), "cancelled")]
    assert (list(device.waiting), list(device.idle_sessions)) == ([], ["talk"])


def test_caches_are_not_kept_without_keep_cache() -> None:
    t = talk()
    t.say(RequestArrived(GenerationRequest("once", PROMPT, LIMIT)))
    assert (t.caches, dict(t.device.idle_sessions)) == (set(), {})


def test_idle_sessions_are_bounded_and_the_oldest_is_released() -> None:
    t = talk()
    for number in range(MAX_IDLE_SESSIONS + 3):
        t.turn((number, 1, 2), f"talk-{number}")
    assert len(t.device.idle_sessions) == MAX_IDLE_SESSIONS
    kept = {f"talk-{number}" for number in range(3, MAX_IDLE_SESSIONS + 3)}
    assert set(t.device.idle_sessions) == t.caches == kept
    assert t.turn((0, 1, 2, 5), "talk-0").asked == 0


def test_a_device_alone_continues_from_its_own_cache() -> None:
    t = talk("edge_centric")
    first = t.turn(PROMPT)
    second = t.turn(PROMPT + first.text + (5,))
    assert (second.asked, second.drafted, second.ending) == (None, len(PROMPT) + LIMIT - 1, "complete")
