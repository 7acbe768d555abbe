"""Sessions that begin with what others have cached: fewer tokens run, and every text stays the target's."""

import random
from dataclasses import replace

import pytest

from serving.messages import INF, ForwardWork, RequestArrived, StartWork
from serving.policy.policy import Policy, SlotConflictError
from serving.policy.slots.kv_cache import PrefixCaching, SharedPrefixCaching
from serving.policy.slots.scheduler import ContinuousBatch
from tests.support.fake_pair import own_text
from tests.support.policies import policy
from tests.support.simulated_nodes import World, world

SYSTEM = tuple(range(100, 140))


def requests(p: Policy, prompts: list[tuple[int, ...]], gap_s: float = 5.0, **conditions: object) -> World:
    """A request of each prompt, `gap_s` apart, each of a device of its own."""
    w = world(p, devices=len(prompts), calls_each=0, **conditions)  # type: ignore[arg-type]
    w.calls = [replace(CALL, session=f"s{i}.0", prompt=prompt) for i, prompt in enumerate(prompts)]
    for i, call in enumerate(w.calls):
        w.simulator.post(i * gap_s, f"device-{i}", RequestArrived(call))
    return w.run()


CALL = world(policy("cloud_centric"), devices=1).calls[0]


def cloud_tokens(w: World) -> int:
    return w.chips["cloud"].num_tokens_run


def check_texts(w: World) -> None:
    for call in w.calls:
        assert w.endings()[call.session] == "complete"
        assert w.text(call.session) == own_text(call.prompt, call.max_new_tokens)


def sharing(name: str, **options: int) -> Policy:
    return replace(policy(name), kv_cache=SharedPrefixCaching(**{"block_tokens": 4} | options))


def keeping(name: str) -> Policy:
    return replace(policy(name), kv_cache=PrefixCaching(block_tokens=4))


@pytest.mark.parametrize("name", ["cloud_centric", "sled"])
def test_later_sessions_run_what_is_new_of_their_prompts(name: str) -> None:
    prompts = [(*SYSTEM, 7 * i, 7 * i + 1) for i in range(4)]
    plain, shared = requests(keeping(name), prompts), requests(sharing(name), prompts)
    for w in (plain, shared):
        check_texts(w)
        assert w.replays()
    assert cloud_tokens(plain) - cloud_tokens(shared) == 3 * len(SYSTEM)
    assert [shared.text(call.session) for call in shared.calls] == [plain.text(call.session) for call in plain.calls]


def test_a_next_turn_runs_what_was_said_since() -> None:
    first = tuple(range(50, 63))
    answer = own_text(first, CALL.max_new_tokens)
    second = (*first, *answer, 5, 6)
    shared = requests(sharing("cloud_centric"), [first, second], gap_s=60)
    check_texts(shared)
    known = (len(first) + len(answer) - 1) // 4 * 4  # the last token of an answer was never run
    alone = requests(sharing("cloud_centric"), [second])
    assert (
        cloud_tokens(shared) == cloud_tokens(requests(sharing("cloud_centric"), [first])) + cloud_tokens(alone) - known
    )


def test_no_idle_caches_means_that_only_sessions_at_a_time_share() -> None:
    prompts = [(*SYSTEM, i) for i in range(3)]
    apart = requests(sharing("cloud_centric", idle_sessions=0), prompts, gap_s=60)
    together = requests(sharing("cloud_centric", idle_sessions=0), prompts, gap_s=0.15)
    check_texts(apart)
    check_texts(together)
    assert cloud_tokens(apart) == cloud_tokens(requests(keeping("cloud_centric"), prompts))
    assert cloud_tokens(together) < cloud_tokens(apart)


def test_only_so_many_ended_sessions_leave_their_caches() -> None:
    prompts = [(1000 * i, *range(1, 12)) for i in range(5)]
    w = requests(sharing("cloud_centric", idle_sessions=2), prompts, gap_s=60)
    left = {session for session, part in w.chips["cloud"].caches if part is not None}
    assert left == {"s3.0", "s4.0"}
    assert {session for session, _ in w.workers["cloud"].kv_accounting.cached_lens} == left  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(60))
def test_any_load_keeps_every_text(seed: int) -> None:
    """Few blocks, so that caches which others are to begin with are evicted; prompts that share much or little."""
    r = random.Random(seed)
    stems = [tuple(r.choices(range(5), k=r.randint(0, 24))) for _ in range(2)]
    prompts = [(*r.choice(stems), *r.choices(range(5), k=r.randint(1, 8))) for _ in range(7)]
    name = r.choice(["cloud_centric", "sled"])
    p = sharing(name, block_tokens=r.choice([1, 3, 4]), idle_sessions=r.choice([0, 1, 4]))
    capacity = r.choice([INF, 64.0, 96.0, 160.0])
    w = world(p, devices=len(prompts), calls_each=0, capacity_tokens=capacity, timeout_s=r.choice([INF, 20.0]))
    w.calls = [
        replace(CALL, session=f"s{i}.0", prompt=prompt, max_new_tokens=r.randint(1, 16))
        for i, prompt in enumerate(prompts)
    ]
    cancelled = w.post_at_random(r)
    w.run()
    for call in w.calls:
        if w.endings()[call.session] == "complete":
            assert w.text(call.session) == own_text(call.prompt, call.max_new_tokens), call
        else:
            assert call.session in cancelled
    assert w.replays()
    accounting = w.workers["cloud"].kv_accounting  # type: ignore[union-attr]
    held = {key for key in w.chips["cloud"].caches if key[1] is not None}
    assert set(accounting.cached_lens) == held
    assert accounting.used_tokens <= capacity
    assert all(len(w.chips["cloud"].caches[key]) > accounting.cached_lens[key] for key in held)


def test_a_request_whose_donor_is_evicted_as_it_starts_runs_whole() -> None:
    """The batch needs the memory of the very cache that a prompt was to begin with."""
    prompts = [(*SYSTEM, 1), (*SYSTEM, 2, 3)]
    w = requests(sharing("cloud_centric"), prompts, gap_s=60, capacity_tokens=72.0)
    check_texts(w)
    copied = [
        command.work.prefixes
        for _, _, _, commands in w.log.entries
        for command in commands
        if isinstance(command, StartWork) and isinstance(command.work, ForwardWork) and command.work.prefixes
    ]
    assert not copied
    assert cloud_tokens(w) == cloud_tokens(requests(keeping("cloud_centric"), prompts, gap_s=60, capacity_tokens=72.0))


def test_a_prompt_does_not_begin_with_a_cache_that_its_batch_writes_anew() -> None:
    """`s0` comes back with another prompt, in the batch in which `s2` is to begin behind what it held."""
    first, other = (*SYSTEM, 1), (*reversed(SYSTEM), 2)
    p = replace(sharing("cloud_centric"), scheduler=ContinuousBatch())
    w = world(p, devices=4, calls_each=0)
    calls = [
        replace(CALL, session="s0.0", prompt=first, max_new_tokens=2),
        replace(CALL, session="s1.0", prompt=other, max_new_tokens=2),
        replace(CALL, session="s3.0", prompt=tuple(range(300, 3300)), max_new_tokens=1),  # keeps the chip busy
        replace(CALL, session="s0.0", prompt=(*other, 5), max_new_tokens=2),
        replace(CALL, session="s2.0", prompt=(*first, 6), max_new_tokens=2),
    ]
    for at_s, device, call in zip((0, 20, 40, 40.01, 40.1), (0, 1, 3, 0, 2), calls, strict=True):
        w.simulator.post(at_s, f"device-{device}", RequestArrived(call))
    w.run()
    assert w.text("s2.0") == own_text((*first, 6), 2)
    assert w.text("s0.0") == own_text(first, 2) + own_text((*other, 5), 2)
    assert w.replays()


def test_a_split_model_is_refused() -> None:
    with pytest.raises(SlotConflictError, match="copies the caches of whole texts"):
        replace(policy("hat"), kv_cache=SharedPrefixCaching())
