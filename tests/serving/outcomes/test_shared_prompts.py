"""Prompts of numbers that begin alike: a system prompt, and turns of a conversation."""

from dataclasses import replace

import pytest

from serving.core.decoding import Decoding
from serving.outcomes.constant import ConstantAcceptance
from serving.outcomes.shared_prompts import check_unshared
from serving.policy.slots.kv_cache import SharedPrefixCaching
from serving.runtimes.emulated import Emulated
from serving.runtimes.local import Local
from serving.runtimes.simulated import Simulated
from serving.workload.prompt import Prompt
from serving.workload.sharing import PromptSharing
from serving.workload.workload import WorkloadRequest
from tests.support.fake_setup import setup

OUTCOMES = ConstantAcceptance(acceptance_rate=0.7, prompt_tokens=10)


def prompts(sharing: PromptSharing, limit: int = 100) -> list[tuple[int, ...]]:
    """Those of six requests, of two devices in turn, with answers of 5 tokens."""
    asked = [
        WorkloadRequest(i, Prompt("p", "?", (), "made up"), i % 2, i // 2, None, 0.0, limit, 5, None, sharing)
        for i in range(6)
    ]
    return [query.request.prompt for query in OUTCOMES.make_queries(asked, Decoding(), 0)]


def shared_len(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_all_prompts_begin_with_the_system_prompt_and_with_nothing_else() -> None:
    made = prompts(PromptSharing(shared_tokens=7))
    assert {len(prompt) for prompt in made} == {17}
    assert {shared_len(a, b) for i, a in enumerate(made) for b in made[:i]} == {7}


def test_a_later_turn_begins_with_what_was_said_before() -> None:
    made = prompts(PromptSharing(shared_tokens=7, turns=2))
    first, second, third = made[0::2]
    assert second[: len(first)] == first
    assert second[len(first) : len(first) + 5] == tuple(4 * at for at in range(17, 22))  # as the target writes them
    assert len(second) == len(first) + 5 + 10
    assert shared_len(third, first) == 7  # a conversation of its own
    assert shared_len(made[1], first) == 7  # that of another device


def test_a_prompt_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a prompt of 25 tokens \(turn 2 of 3\), and the limit is 20"):
        prompts(PromptSharing(turns=3), limit=20)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="shared_tokens must be 0 or more, got -1"):
        PromptSharing(shared_tokens=-1)
    with pytest.raises(ValueError, match="turns must be 1 or more, got 0"):
        PromptSharing(turns=0)


def test_prompts_without_text_must_say_what_they_share() -> None:
    silent = setup("cloud_centric", override={"kv_cache": SharedPrefixCaching()})
    with pytest.raises(ValueError, match="prompts without text do not say it"):
        Simulated(OUTCOMES).check(silent)
    with pytest.raises(ValueError, match="this study's prompts do not say it"):
        check_unshared(silent.policy)
    said = replace(silent, workload=replace(silent.workload, sharing=PromptSharing(shared_tokens=32)))
    Simulated(OUTCOMES).check(said)


def test_text_is_not_told_what_to_share() -> None:
    told = setup("cloud_centric")
    told = replace(told, workload=replace(told.workload, sharing=PromptSharing(shared_tokens=32)))
    for runtime in (Emulated(), Local()):
        with pytest.raises(ValueError, match="and these are text; leave it out"):
            runtime.check(told)


def test_conversations_need_the_targets_own_answers() -> None:
    told = setup("synera")
    told = replace(told, workload=replace(told.workload, sharing=PromptSharing(turns=2)))
    with pytest.raises(ValueError, match=r"sharing.turns is 2, and policy synera writes another text"):
        Simulated(OUTCOMES).check(told)
