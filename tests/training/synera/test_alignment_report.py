"""Rows of made-up tokens and drafts, counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from training.synera.alignment import AlignedTokens, Alignment, Flags, VerifiedDrafts
from training.synera.alignment_report import CONTENT, DRAFT, DRAFTED, SCORE, TOKEN, metrics, rows


def flags(text: str) -> Flags:
    return np.array([letter == "x" for letter in text])


TOKENS = AlignedTokens(
    answer=np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
    confidence=np.array([0.1, 0.2, 0.39, 0.4, 0.8, 0.9, 1.0, 1.0, 0.95, 0.19]),
    top_1=flags("..xxxxxxx."),
    top_5=flags("x.xxxxxxxx"),
    content=flags("xx.......x"),
    importance=np.array([0.6, 0.2, 0.1, 0.1, 0.1, np.nan, 0.3, 0.2, 0.2, 0.2]),
)
DRAFTS = VerifiedDrafts(np.array([0, 0, 0, 1, 1]), np.array([0.1, 0.2, 0.6, 1.0, 0.6]),
                np.array([0.6, 0.2, 0.1, 0.3, 0.2]), flags("xx..x"))  # fmt: skip
FOUND = Alignment(("choice", "sort"), TOKENS, DRAFTS)


def value(group: str, row: str, metric: str) -> float | None:
    cell = rows(FOUND)[group][row][metric]
    return None if cell is None else float(np.mean(cell))


@pytest.mark.parametrize(
    ("row", "share", "top_1", "top_5"),
    [
        ("confidence 0.0-0.2", 0.2, 0.0, 1.0),  # an edge belongs to the bin above it
        ("confidence 0.2-0.4", 0.2, 0.5, 0.5),
        ("confidence 0.4-0.6", 0.1, 1.0, 1.0),
        ("confidence 0.6-0.8", 0.0, None, None),
        ("confidence 0.8-1.0", 0.5, 1.0, 1.0),  # and 1 to the last one
        ("confidence 0.0-0.4", 0.4, 0.25, 0.75),
        ("all", 1.0, 0.7, 0.9),
    ],
)
def test_tokens_are_binned_by_confidence(row: str, share: float, top_1: float | None, top_5: float | None) -> None:
    found = [value(TOKEN, row, metric) for metric in ("share", "top_1", "top_5")]
    assert found == [pytest.approx(each) if each is not None else None for each in (share, top_1, top_5)]


def test_content_tokens_are_binned_among_themselves() -> None:
    assert value(CONTENT, "confidence 0.0-0.2", "share") == pytest.approx(2 / 3)


def test_the_most_important_of_the_drafted_tokens() -> None:
    """Nine have a draft, with 2.0 of importance: a fifth of them are two, with 0.6 and 0.3."""
    assert value(DRAFTED, "most important fifth", "share_of_importance") == pytest.approx(0.45)
    assert value(DRAFTED, "most important fifth", "share_of_misses") == pytest.approx(1 / 3)
    assert value(DRAFTED, "least confident fifth", "share_of_misses") == pytest.approx(2 / 3)


def test_the_tokens_of_a_round_are_the_accepted_ones_and_the_verdicts_own() -> None:
    counted = replace(FOUND, drafts=replace(DRAFTS, accepted=np.array([0, 1, 4, 4, 1])))
    found = rows(counted)[DRAFT]
    assert np.mean(found["all"]["acceptance_length_with_bonus"] or ()) == pytest.approx(3.0)
    assert np.mean(found["least confident fifth"]["acceptance_length_with_bonus"] or ()) == pytest.approx(1.0)
    assert "acceptance_length_with_bonus" not in rows(FOUND)[DRAFT]["all"]


def test_the_share_of_cut_drafts_among_the_most_important() -> None:
    assert value(DRAFT, "all", "rejected_share") == pytest.approx(0.6)
    assert value(DRAFT, "most important fifth", "rejected_share") == pytest.approx(1.0)
    assert value(DRAFT, "most important fifth", "share_of_misses") == pytest.approx(1 / 3)


def test_scores_are_summarised_by_auc_and_correlation() -> None:
    """Doubt ranks one whole draft beside the last cut one, importance 0.6, 0.2, 0.2 against 0.1 and 0.3."""
    assert value(SCORE, "doubt of drafts", "auc") == pytest.approx(5.5 / 6)
    assert value(SCORE, "importance of drafts", "auc") == pytest.approx(4 / 6)
    assert value(SCORE, "doubt of tokens", "auc") == pytest.approx(1.0)
    assert value(SCORE, "doubt of drafts", "spearman") == pytest.approx(1.0)


def test_metrics_are_the_rows_without_what_is_unknown() -> None:
    found = metrics(FOUND, rows(FOUND))
    assert found["token/all/top_1"] == pytest.approx(0.7)
    assert "token/confidence 0.6-0.8/top_1" not in found
    assert (found["tokens"], found["drafts"], found["answers"]) == (10, 5, 2)
    assert found["task/sort/importance_auc_rejected"] == 0.0
    assert all(isinstance(number, int | float) for number in found.values())
    assert not any(mark in name for name in found for mark in "%,()")  # MLflow refuses them


def test_answers_without_drafts_have_rows_without_numbers() -> None:
    none = np.array([])
    kinds = {"answer": np.int64, "confidence": np.float64, "importance": np.float64}
    bare = AlignedTokens(*(np.array([], kinds.get(name, np.bool_)) for name in AlignedTokens.__annotations__))
    found = Alignment(("",), bare, VerifiedDrafts(none.astype(np.int64), none, none, none.astype(np.bool_)))
    assert set(metrics(found, rows(found))) == {"answers", "tokens", "drafts"}
