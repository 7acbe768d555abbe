"""CITER's shortcut by its table, and the reference token of each position."""

import pytest

from training.routing.record import preference_reason, prefers_small, reference_tokens
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
