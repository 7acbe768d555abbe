"""The profiled thresholds as an artifact."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.learned.thresholds import FILE, Thresholds, load, nearest_rank

MADE = Thresholds(
    0.8, 0.7, (0.5, 0.75), (0.25, 1.0), {"pair": "a + b"}, num_fully_accepted=1,
    importance_auc_of_full_chunks={"importance": 0.5},
)  # fmt: skip


def test_saved_thresholds_are_loaded(tmp_path: Path) -> None:
    MADE.save(tmp_path)
    assert load(tmp_path) == MADE


@pytest.mark.parametrize(
    ("accepted", "said"),
    [(0, "not one of 2 drafts was accepted as a whole (alpha 0.70; a + b"), (1, None), (None, None),
     (2, "all 2 drafts were accepted as a whole (alpha 0.70; a + b, unknown prompts): c_th is 0.8 and rests")],
)  # fmt: skip
def test_a_profile_with_one_kind_of_draft_is_noted(accepted: int | None, said: str | None) -> None:
    note = replace(MADE, num_fully_accepted=accepted).note
    assert note is None if said is None else said in str(note)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"c_th": 0.5}', '{"c_th": null, "alpha": 1}'])
def test_a_damaged_thresholds_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ValueError, match=r"thresholds .*thresholds.json cannot be read \(.*\); build it again"):
        load(tmp_path)


def test_a_folder_without_thresholds_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"there is no .*thresholds.json; thresholds.path names a folder that stage=profile made"
    ):
        load(tmp_path)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.1, 1), (0.3, 3), (0.31, 4), (0.5, 5), (0.7, 7), (1.0, 10)])
def test_percentiles_are_those_of_the_nearest_rank(share: float, value: int) -> None:
    assert nearest_rank(range(10, 0, -1), share) == value


def test_the_reading_of_importance_with_the_highest_auc_is_the_best() -> None:
    readings, aucs = {"importance_mean": (0.1, 0.9)}, {"importance": 0.55, "importance_mean": 0.6}
    made = replace(MADE, importance_readings=readings, importance_auc=aucs)
    assert MADE.best_importance == "importance"
    assert made.best_importance == "importance_mean"
    assert made.importance_by("importance_mean") == (0.1, 0.9)
    assert made.importance_by("importance") == (0.25, 1.0)
    with pytest.raises(ValueError, match="no score 'importance_later_sum'; they have importance, importance_mean"):
        made.importance_by("importance_later_sum")
