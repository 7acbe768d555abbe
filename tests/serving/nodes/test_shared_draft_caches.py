"""A cloud that drafts: a session's draft model begins with a copy of what an ended one has computed."""

import random
from dataclasses import replace
from typing import Any

import pytest

from serving.messages import INF, CopyCache, ForwardWork, GenerationRequest, RequestArrived, StartWork
from serving.policy.policy import Policy
from serving.policy.slots.draft import TreeDraft
from serving.policy.slots.early_exit import LayerwiseExit
from serving.policy.slots.kv_cache import PrefixCaching, SharedPrefixCaching
from serving.policy.slots.placement import ColocatedPlacement
from serving.policy.slots.prefill import WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch
from serving.policy.slots.verify import TreeVerify
from tests.support.fake_pair import own_text
from tests.support.policies import policy
from tests.support.simulated_nodes import World, world

SYSTEM = tuple(range(100, 140))


def drafting(shared: bool = True, drafter: Any = "shared", block_tokens: int = 4, **override: Any) -> Policy:
    kv_cache = (SharedPrefixCaching if shared else PrefixCaching)(block_tokens=block_tokens)
    choices: dict[str, Any] = {
        "placement": ColocatedPlacement(drafter=drafter),
        "kv_cache": kv_cache,
        "scheduler": ContinuousBatch(),
        "prefill": WholePrefill("first"),
        "batch_drafts": True,
    }
    return policy("sled", **choices | override)


def requests(p: Policy, prompts: list[tuple[int, ...]], gap_s: float = 30.0, **conditions: Any) -> World:
    """A request of each prompt, `gap_s` apart, each of a device of its own."""
    w = world(p, devices=len(prompts), calls_each=0, **conditions)
    w.calls = [GenerationRequest(f"s{i}", prompt, 12) for i, prompt in enumerate(prompts)]
    for i, call in enumerate(w.calls):
        w.simulator.post(i * gap_s, f"device-{i}", RequestArrived(call))
    return w.run()


def drafts(w: World) -> list[tuple[str, tuple[int, ...]]]:
    return [(chunk.session, chunk.tokens) for chunk in w.chunks()]


def held(w: World, drafter: bool) -> set[str]:
    return {session for session, part in w.chips["cloud"].caches if (part is None) is drafter}


@pytest.mark.parametrize("drafter", ["shared", "apart"])
def test_later_sessions_run_what_is_new_of_their_prompts_through_both_models(drafter: str) -> None:
    prompts = [(*SYSTEM, 7 * i, 7 * i + 1) for i in range(4)]
    plain, shared = (requests(drafting(each, drafter), prompts) for each in (False, True))
    for w in (plain, shared):
        assert all(w.text(call.session) == own_text(call.prompt, 12) for call in w.calls)
        assert w.replays()
    assert drafts(plain) == drafts(shared)
    copies = shared.log.commands(CopyCache)
    assert [(copy.to, copy.length) for copy in copies] == [(f"s{i}", len(SYSTEM)) for i in (1, 2, 3)]
    assert held(shared, True) == held(shared, False) == {f"s{i}" for i in range(4)}
    assert not held(plain, True) | held(plain, False)


def test_a_draft_cache_goes_with_the_targets() -> None:
    prompts = [(1000 * i, *range(1, 12)) for i in range(5)]
    p = replace(drafting(), kv_cache=SharedPrefixCaching(block_tokens=4, idle_sessions=2))
    w = requests(p, prompts)
    assert held(w, True) == held(w, False) == {"s3", "s4"}
    assert not w.log.commands(CopyCache)


def test_with_early_exit_the_draft_model_computes_every_prompt() -> None:
    p = drafting(early_exit=LayerwiseExit(), batch_drafts=False)
    w = requests(p, [(*SYSTEM, 1), (*SYSTEM, 2)])
    assert not w.log.commands(CopyCache)
    assert not held(w, True)
    assert held(w, False) == {"s0", "s1"}


TREES: dict[str, Any] = {"draft": TreeDraft(nodes=6, depth=3, branching=2), "verify": TreeVerify()}


def test_a_next_turn_begins_behind_the_accepted_drafts_of_trees() -> None:
    first = tuple(range(50, 63))
    said = (*first, *own_text(first, 12))
    w = requests(drafting(**TREES), [first, (*said, 5, 6)], gap_s=60)
    assert [w.text(call.session) for call in w.calls] == [own_text(call.prompt, 12) for call in w.calls]
    forwards = [command.work for command in w.log.commands(StartWork) if isinstance(command.work, ForwardWork)]
    (begun,) = [work.slices[0].start for work in forwards if any(work.prefixes)]
    assert begun >= len(said) - 8  # whole blocks; which drafts of the last tree were accepted, the cloud does not hear


@pytest.mark.parametrize("seed", range(60))
def test_any_load_keeps_every_text_and_no_draft_cache_without_its_targets(seed: int) -> None:
    r = random.Random(seed)
    stems = [tuple(r.choices(range(5), k=r.randint(0, 24))) for _ in range(2)]
    prompts = [(*r.choice(stems), *r.choices(range(5), k=r.randint(1, 8))) for _ in range(7)]
    for turn in range(2, 7, 2):
        prompts[turn] = (*prompts[turn - 1], *own_text(prompts[turn - 1], r.randint(1, 12)), turn)
    p = drafting(drafter=r.choice(["shared", "apart"]), block_tokens=r.choice([1, 3, 4]), **r.choice([{}, TREES]))
    capacity = r.choice([INF, 96.0, 160.0])
    w = world(p, devices=len(prompts), calls_each=0, capacity_tokens=capacity, timeout_s=r.choice([INF, 20.0]))
    w.calls = [GenerationRequest(f"s{i}", prompt, r.randint(1, 16)) for i, prompt in enumerate(prompts)]
    cancelled = w.post_at_random(r)
    w.run()
    for call in w.calls:
        if call.session not in cancelled:
            assert w.text(call.session) == own_text(call.prompt, call.max_new_tokens), call
    assert w.replays()
    assert held(w, True) <= held(w, False)
