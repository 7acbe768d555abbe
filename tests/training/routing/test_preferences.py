"""CITER's shortcut by its table, and the reference token of each position."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from serving.deployment.queries import Query
from serving.messages import GenerationRequest
from serving.workload.metrics import ExactMatch
from serving.workload.prompt import Prompt
from training.routing.record import (
    Disagreement,
    Trajectory,
    TrajectoryRecorder,
    _unended_continuations,
    preference_reason,
    prefers_small,
    reference_tokens,
)
from training.routing.states import PreferenceReason


@pytest.mark.parametrize(("small", "large", "truth", "by"), [
    (7, 7, 7, "small"), (7, 8, 7, "small"), (8, 7, 7, "large"), (8, 9, 7, "compared"), (8, 8, 7, "alike"),
    (8, 9, None, "compared"), (8, 8, None, "alike"),
])  # fmt: skip
def test_citers_shortcut_decides_by_its_table(small: int, large: int, truth: int | None, by: PreferenceReason) -> None:
    assert preference_reason(small, large, truth) == by


@pytest.mark.parametrize(("text", "expected"), [
    ([1, 2, 3], [1, 2, 3]), ([1, 9, 3], [1, 2, None]), ([9, 2, 3], [1, None, None]), ([1, 2, 3, 4], [1, 2, 3, None]),
    ([], []),
])  # fmt: skip
def test_reference_tokens_end_where_the_text_departs_from_the_reference(
    text: list[int], expected: list[int | None]
) -> None:
    assert reference_tokens(text, [1, 2, 3]) == expected


def test_qualities_are_compared_in_order_and_ties_prefer_the_small_model() -> None:
    assert prefers_small((1.0, 0.2), (0.0, 0.9))
    assert not prefers_small((0.0, 0.2), (0.0, 0.3))
    assert prefers_small((0.0, 0.3), (0.0, 0.3))


def disagreement(small: int = 7, large: int = 8) -> Disagreement:
    """Behind two of three tokens of an answer that may have six; 0 ends a text."""
    request = GenerationRequest("r", (1, 2), 6, stop_tokens=(0,))
    query = Query(request, Prompt("p", "", ("the red house of today",), "facts", "none"), 0, None, 0.0, None)
    return Disagreement(Trajectory(query, (3, 4, 5), ()), 2, small, large)


def test_continuations_have_the_shared_text_and_what_is_left_of_the_limit() -> None:
    small, large = (query.request for query in disagreement().continuation_queries())
    assert (small.prompt, large.prompt) == ((1, 2, 3, 4, 7), (1, 2, 3, 4, 8))
    assert small.max_new_tokens == large.max_new_tokens == 3
    assert small.session != large.session


def test_the_last_token_of_the_limit_is_not_continued() -> None:
    before = disagreement()
    last = replace(before, trajectory=replace(before.trajectory, answer=(3, 4, 5, 6, 7, 9)), position=5)
    assert _unended_continuations([last]) == []
    one_left = replace(last, position=4)
    assert [query.request.max_new_tokens for query in _unended_continuations([one_left])] == [1, 1]


def test_a_token_that_ends_the_text_is_not_continued() -> None:
    found = _unended_continuations([disagreement(small=0)])
    assert [query.request.prompt[-1] for query in found] == [8]


def test_continuations_that_are_both_wrong_are_compared_by_their_words() -> None:
    """Two of three words, and of five; or three."""
    words = {3: "the", 4: "red", 7: "cat", 8: "house"}
    tokenizer = SimpleNamespace(decode=lambda tokens: " ".join(words[token] for token in tokens))
    models: Any = SimpleNamespace(tokenizer=tokenizer)
    recorder = TrajectoryRecorder(models, None, (ExactMatch(),), 0, 1)  # type: ignore[arg-type]
    small, large = (recorder._quality(disagreement(), side, {}) for side in ("small", "large"))
    assert small == (0.0, pytest.approx(0.5))
    assert large == (0.0, pytest.approx(0.75))
