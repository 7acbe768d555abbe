from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.progress import silent
from training.embedded_pair import corpus
from training.embedded_pair.tasks import SPLITS, TASKS


def build(out: Path, **changes: object) -> Path:
    sizes = {"train_items": 200, "validation_items_per_task": 2, "test_items_per_task": 5, "vocab_size": 500}
    out.mkdir()
    corpus.build(out, progress=silent, **(sizes | changes))  # type: ignore[arg-type]
    return out


def test_corpora_of_one_seed_are_equal(tmp_path: Path) -> None:
    first, again, other = build(tmp_path / "a"), build(tmp_path / "b"), build(tmp_path / "c", seed=1)
    for name in ("train.jsonl", "test.jsonl", "tokenizer/tokenizer.json"):
        assert (first / name).read_bytes() == (again / name).read_bytes() != (other / name).read_bytes()


def test_built_splits_do_not_overlap(toy_corpus: Path) -> None:
    rows = {split: corpus.load(toy_corpus, split) for split in SPLITS}
    for field in ("key", "prompt", "id"):
        values = [row[field] for split in SPLITS for row in {row[field]: row for row in rows[split]}.values()]
        assert len(values) == len(set(values))


def test_held_out_splits_have_every_task_equally_and_no_prompt_twice(toy_corpus: Path) -> None:
    rows = corpus.load(toy_corpus, "test")
    assert [row["task"] for row in rows] == [*TASKS] * 8
    assert len({row["prompt"] for row in rows}) == len(rows)


def test_task_shares_decide_the_mixture(tmp_path: Path) -> None:
    rows = corpus.load(build(tmp_path / "c", task_shares={"sort": 3, "facts": 1}), "train")
    assert {row["task"] for row in rows} == {"sort", "facts"}
    assert 0.65 < sum(row["task"] == "sort" for row in rows) / len(rows) < 0.85


def test_corpus_rows_are_json_lines(toy_corpus: Path) -> None:
    first = json.loads((toy_corpus / "train.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert set(first) == {"id", "task", "prompt", "reference", "answer", "key"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_shares": {"sorting": 1.0}}, "no such task: sorting; the tasks are choice"),
        ({"task_shares": {"sort": -1.0}}, "must be at least 0"),
        ({"validation_items_per_task": 200}, "task facts has fewer than 200 distinct validation prompts"),
    ],
)
def test_invalid_corpus_options_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(tmp_path / "c", **changes)


def test_an_unknown_split_is_refused(toy_corpus: Path) -> None:
    with pytest.raises(ValueError, match="no split 'dev'; the splits are train"):
        corpus.load(toy_corpus, "dev")
