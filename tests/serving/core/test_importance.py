"""Readings of importance of one draft, by hand."""

import pytest

from serving.core.importance import ALL_LAYERS, LAST_LAYER, draft_importance, importance_plane, importance_scores

ROWS = [[0.5], [0.2, 0.4], [0.1, 0.3, 0.6]]
"""A draft of four tokens: three rows, the last token is not fed."""


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("importance", (0.8, 0.7, 0.6)),
        ("importance_mean", (0.8 / 3, 0.35, 0.6)),
        ("importance_later_sum", (0.3, 0.3, 0.0)),
        ("importance_later_mean", (0.15, 0.3, 0.0)),
    ],
)
def test_a_column_is_summed_or_averaged_with_its_own_row_or_without(score: str, expected: tuple[float, ...]) -> None:
    for name in (score, f"{score}_last_layer"):
        found = draft_importance(ROWS, 4, name)
        assert found[:3] == pytest.approx(expected)
        assert found[3] == pytest.approx(sum(expected) / 3)


def test_a_short_draft_of_pure_self_attention_ranks_first_by_means_and_last_without_the_diagonal() -> None:
    """Two tokens at the end of an answer: one row, which is the token's own."""

    def mean(rows: list[list[float]], tokens: int, score: str) -> float:
        return sum(draft_importance(rows, tokens, score)) / tokens

    short = [[0.5]]
    assert mean(short, 2, "importance_mean") > mean(ROWS, 4, "importance_mean")
    assert mean(short, 2, "importance") < mean(ROWS, 4, "importance")
    assert mean(short, 2, "importance_later_sum") == 0


def test_drafts_without_tokens_or_rows_have_no_importance() -> None:
    assert draft_importance([], 0, "importance") == ()
    assert draft_importance([[0.3]], 1, "importance") == (0.3,)
    assert draft_importance([[0.3]], 1, "importance_later_mean") == (0.0,)


def test_planes_and_names() -> None:
    assert importance_plane("importance_mean") == ALL_LAYERS
    assert importance_plane("importance_last_layer") == LAST_LAYER
    assert importance_scores(("confidence", "importance_later_sum")) == ("importance_later_sum",)
