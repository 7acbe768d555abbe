from collections import Counter
from typing import cast

import pytest

from serving.workload.prompt import Prompt, check_prompts, select_prompts

PROMPTS = [Prompt(f"{task}{number}", "?", (), task) for task in "abc" for number in range(10)]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (Prompt("b", " \n", ("yes",), "t"), "its prompt is empty"),
        (Prompt("b", "?", ("yes", " "), "t"), "a reference of it is empty"),
        (Prompt("b", cast("str", None), ("yes",), "t"), "it has None where a text is wanted"),
        (Prompt("b", "?", (cast("str", 5),), "t"), "it has 5 where a text is wanted"),
        (Prompt("a", "??", ("yes",), "t"), "item 1 has the same id"),
    ],
)
def test_an_item_that_cannot_be_served_or_scored_is_named(wrong, problem):
    prompts = [Prompt("a", "?", (), "t"), wrong]
    with pytest.raises(ValueError, match=rf"^own lines: item 2 \(id '{wrong.id}'\): {problem}; correct it"):
        check_prompts(prompts, "own lines")


def test_prompts_without_text_are_allowed_where_the_data_set_has_none():
    check_prompts([Prompt("a", "", (), "t")], "blank", has_text=False)


def test_blank_references_are_allowed_where_answers_are_not_scored():
    check_prompts([Prompt("a", "?", ("",), "t")], "Spec-Bench", is_scored=False)


def test_tasks_are_drawn_evenly():
    assert Counter(prompt.task for prompt in select_prompts(PROMPTS, 12, seed=0)) == {"a": 4, "b": 4, "c": 4}


def test_a_small_task_leaves_its_share_to_the_others():
    counts = Counter(prompt.task for prompt in select_prompts(PROMPTS[:13], 11, seed=0))
    assert counts == {"a": 8, "b": 3}


def test_more_prompts_include_the_fewer():
    few, many = select_prompts(PROMPTS, 6, seed=0), select_prompts(PROMPTS, 20, seed=0)
    assert set(few) < set(many)
    assert [prompt for prompt in many if prompt in few] == few


def test_file_order_does_not_matter_and_the_seed_does():
    assert select_prompts(PROMPTS[::-1], 9, seed=0) == select_prompts(PROMPTS, 9, seed=0)
    assert select_prompts(PROMPTS, 9, seed=1) != select_prompts(PROMPTS, 9, seed=0)


def test_the_order_mixes_the_tasks():
    dealt = [prompt.task for prompt in select_prompts(PROMPTS, 30, seed=0)]
    assert all(len(set(dealt[device::3])) == 3 for device in range(3))


def test_too_many_prompts_are_refused():
    with pytest.raises(ValueError, match=r"workload.num_prompts=31 is more than the data set's 30"):
        select_prompts(PROMPTS, 31, seed=0)


def test_skipped_prompts_are_not_selected():
    prompts = [Prompt(str(i), "", (), "ab"[i % 2]) for i in range(200)]
    served = {prompt.id for prompt in select_prompts(prompts, 100, seed=3)}
    profiled = {prompt.id for prompt in select_prompts(prompts, 60, seed=3, skip=100)}
    assert len(profiled) == 60
    assert not served & profiled


def test_a_skip_beyond_the_data_set_is_named():
    with pytest.raises(ValueError, match=r"workload.skip=30 leaves none of the data set's 30 prompts; lower it"):
        select_prompts(PROMPTS, 2, seed=0, skip=30, reuse_prompts=True)


def test_a_data_set_without_prompts_says_so():
    with pytest.raises(ValueError, match=r"workload: the data set has no prompts; look at the file that workload.path"):
        select_prompts([], 4, seed=0)
