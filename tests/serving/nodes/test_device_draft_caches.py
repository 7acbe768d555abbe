"""A device's draft model begins behind what an ended session has computed, and drafts what it would have drafted."""

import random
from dataclasses import replace

import pytest

from serving.messages import DropCache, GenerationRequest, MoveCache, PeerLost, RequestArrived, SessionCancelled
from serving.policy.policy import Policy, SlotConflictError
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.placement import ColocatedPlacement
from serving.policy.slots.prefill import WholePrefill
from tests.support.fake_pair import own_text
from tests.support.policies import policy
from tests.support.simulated_nodes import World, failing, world

SYSTEM = tuple(range(100, 140))


def keeping(name: str, sessions: int) -> Policy:
    return replace(policy(name), kv_cache=PrefixCaching(device_idle_sessions=sessions))


def turns(name: str, prompts: list[tuple[int, ...]], sessions: int, gap_s: float = 60.0, limit: int = 24) -> World:
    """A device's requests, one of each prompt, `gap_s` apart."""
    w = world(keeping(name, sessions), devices=1, calls_each=0)
    for i, prompt in enumerate(prompts):
        w.calls.append(GenerationRequest(f"s{i}", prompt, limit))
        w.simulator.post(i * gap_s, "device-0", RequestArrived(w.calls[-1]))
    return w.run()


def device_tokens(w: World) -> int:
    return w.chips["device-0"].num_tokens_run


def held(w: World) -> set[str]:
    return {session for session, part in w.chips["device-0"].caches if part is None}


def conversation(name: str) -> list[tuple[int, ...]]:
    """Two turns; the second begins with the first and the policy's own answer."""
    first = tuple(range(1, 13))
    return [first, (*first, *turns(name, [first], 0).text("s0"), 4, 5)]


@pytest.mark.parametrize("name", ["sled", "synera", "edge_centric"])
def test_a_next_turn_computes_what_was_said_since_and_drafts_the_same(name: str) -> None:
    prompts = conversation(name)
    alone, kept = turns(name, prompts, 0), turns(name, prompts, 1)
    for session in ("s0", "s1"):
        assert kept.text(session) == alone.text(session)
        drafts = [[c.tokens for c in w.chunks() if c.session == session] for w in (alone, kept)]
        assert drafts[0] == drafts[1]
    saved = device_tokens(alone) - device_tokens(kept)
    said = len(prompts[1]) - 2
    assert said - 8 <= saved <= said  # an answer's last tokens may never have been run
    assert kept.log.commands(MoveCache) == [MoveCache("s0", "s1")]
    assert kept.replays()
    assert held(kept) == {"s1"}
    assert not held(alone)


def test_the_cache_that_is_most_alike_is_taken_and_the_others_stay() -> None:
    prompts = [(*SYSTEM, 1, 2, 3), (*SYSTEM[:10], 4, 5, 6), (*SYSTEM, 7, 8)]
    w = turns("sled", prompts, 2)
    assert w.log.commands(MoveCache) == [
        MoveCache("s0", "s1"),
        MoveCache("s1", "s2"),
    ]  # s1 held the system prompt's head
    apart = turns("sled", [(7, *SYSTEM), (8, *SYSTEM), (7, *SYSTEM, 9)], 2)
    assert apart.log.commands(MoveCache) == [MoveCache("s0", "s2")]
    assert held(apart) == {"s1", "s2"}


def test_the_longest_idle_cache_goes_first() -> None:
    w = turns("sled", [(i, i + 1, i + 2) for i in range(0, 50, 10)], 2)
    assert not w.log.commands(MoveCache)
    assert held(w) == {"s3", "s4"}
    assert [c.session for c in w.log.commands(DropCache) if c.start_layer is None] == ["s0", "s1", "s2"]


def test_a_session_that_fails_leaves_nothing() -> None:
    w = failing(world(keeping("sled", 4), devices=1, calls_each=0), "device-0", "s0")
    for at_s, session in ((0.0, "s0"), (60.0, "s1")):
        w.simulator.post(at_s, "device-0", RequestArrived(GenerationRequest(session, (*SYSTEM, 5), 8)))
    w.run()
    assert w.endings() == {"s0": "failed", "s1": "complete"}
    assert not w.log.commands(MoveCache)
    assert held(w) == {"s1"}


def test_the_same_name_continues_in_its_own_cache() -> None:
    w = world(keeping("sled", 2), devices=1, calls_each=0)
    prompts = conversation("sled")
    for i, prompt in enumerate(prompts):
        w.simulator.post(60.0 * i, "device-0", RequestArrived(GenerationRequest("s", prompt, 24)))
    w.run()
    assert not w.log.commands(MoveCache)
    assert w.text("s") == own_text(prompts[0], 24) + own_text(prompts[1], 24)
    assert held(w) == {"s"}


def test_a_draft_model_reads_the_rest_of_its_prompt_while_the_cloud_reads_it() -> None:
    """The prompt goes to the cloud before the first draft: the device's chip has nothing else to do."""
    w = world(replace(keeping("sled", 1), prefill=WholePrefill("first")), devices=1, calls_each=0)
    w.calls += [GenerationRequest(f"s{i}", (*SYSTEM, *range(60 * i + 1)), 8) for i in range(2)]
    for i, call in enumerate(w.calls):
        w.simulator.post(60.0 * i, "device-0", RequestArrived(call))
    w.run()
    asked = next(i for i, (_, event, _, _) in enumerate(w.log.entries) if event == RequestArrived(w.calls[1]))
    first = [type(c).__name__ for c in w.log.entries[asked][3]]
    assert first[:1] == ["MoveCache"]
    assert {"SendMessage", "StartWork"} <= set(first)


@pytest.mark.parametrize("seed", range(60))
def test_any_history_keeps_every_text(seed: int) -> None:
    """Prompts that share much or little, several requests at a time, cancelled ones, and lost links."""
    r = random.Random(seed)
    name, sessions, at_once = r.choice(["sled", "synera", "edge_centric"]), r.choice([1, 2, 5]), r.choice([1, 3])
    w = world(keeping(name, sessions), devices=1, calls_each=0, at_once=at_once, timeout_s=5.0)
    stems = [tuple(r.choices(range(5), k=r.randint(0, 24))) for _ in range(2)]
    plain = world(keeping(name, 0), devices=1, calls_each=0, at_once=at_once, timeout_s=5.0)
    for i in range(7):
        prompt = (*r.choice(stems), *r.choices(range(5), k=r.randint(1, 8)))
        request, at_s = GenerationRequest(f"s{i}", prompt, r.randint(1, 16)), r.uniform(0, 4)
        cancelled_s = at_s + r.uniform(0, 1) if r.random() < 0.2 else None
        for each in (w, plain):
            each.simulator.post(at_s, "device-0", RequestArrived(request))
            if cancelled_s is not None:
                each.simulator.post(cancelled_s, "device-0", SessionCancelled(request.session))
    if r.random() < 0.3 and name == "synera":
        w.simulator.post(2.0, "device-0", PeerLost("cloud"))
    w.run()
    plain.run()
    assert w.replays()
    device = w.devices["device-0"]
    assert held(w) == set(device.draft_caches.texts)  # type: ignore[union-attr]
    assert len(held(w)) <= sessions
    for session, ending in w.endings().items():
        if ending == plain.endings()[session] == "complete" and policy(name).lossless:
            assert w.text(session) == plain.text(session)


@pytest.mark.parametrize("name", ["cloud_centric", "hat"])
def test_a_policy_without_a_whole_draft_model_on_the_device_is_refused(name: str) -> None:
    with pytest.raises(SlotConflictError, match="device_idle_sessions"):
        keeping(name, 1)
    with pytest.raises(SlotConflictError, match="device_idle_sessions"):
        replace(keeping("sled", 1), placement=ColocatedPlacement())


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policy\.kv_cache\.device_idle_sessions is -1; give 0 or more"):
        PrefixCaching(device_idle_sessions=-1)
