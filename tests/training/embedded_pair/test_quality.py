from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from serving.progress import silent
from serving.workload.metrics import Rouge1
from serving.workload.prompt import Prompt
from training.embedded_pair import quality
from training.embedded_pair.quality import scorecard
from training.embedded_pair.tasks import TASKS
from training.fitting.trainer import Trainer

Fresh = Callable[[str], Path]


def test_exact_match_ignores_space_and_capitals_only() -> None:
    assert quality.exact_match(" it is  kept in the Attic. ", "It is kept in the attic.")
    assert not quality.exact_match("It is kept in the attic", "It is kept in the attic.")


def test_scores_of_known_outputs() -> None:
    rows = [{"id": str(n), "task": task, "reference": "a red kite."} for n, task in enumerate(TASKS)]
    graded = quality._score_outputs("large", rows, ["a red kite."] * 3 + ["a blue kite."] * 2 + [""])
    scores = quality._mean_scores(graded, "large")
    assert scores["mean_exact_match"] == pytest.approx(0.5)
    assert scores["rouge1"]["summary"] == pytest.approx(2 / 3)
    assert scores["mean_rouge1"] == pytest.approx((3 + 4 / 3) / 6)


def test_rouge_1_is_that_of_what_is_served() -> None:
    """With stemming: an inflected word counts."""
    (row,) = [{"id": "1", "task": "summary", "reference": "Ada keeps two kites."}]
    (graded,) = quality._score_outputs("large", [row], ["Ada kept one kite."])
    assert graded["rouge1"] == pytest.approx(2 / 4)
    assert graded["rouge1"] == Rouge1().score("Ada kept one kite.", Prompt("1", "", (row["reference"],), "summary"))


def measured(out: Path, corpus: Path, large: Path, small: Path, items: int) -> dict[str, Any]:
    quality.measure_pair(
        out,
        progress=silent,
        corpus=corpus,
        large=large,
        small=small,
        items_per_task=items,
        trainer=Trainer(threads=1, precision="fp32"),
    )
    report: dict[str, Any] = json.loads((out / "quality.json").read_text(encoding="utf-8"))
    return report


def test_a_model_drafts_perfectly_for_itself(fresh: Fresh, toy_corpus: Path, toy_pair: tuple[Path, Path]) -> None:
    report = measured(fresh("out"), toy_corpus, toy_pair[0], toy_pair[0], 2)
    drafting = report["drafting"]
    assert drafting["acceptance_rate"] == 1.0
    assert drafting["auc"] is None
    assert len(drafting["exit_agreement_by_layer"]) == 8
    assert drafting["exit_agreement_by_layer"][-1] == 1.0
    assert report["cost"]["num_parameters_ratio"] == 1.0


def test_generations_are_written_to_a_file(
    fresh: Fresh, tmp_path: Path, toy_corpus: Path, toy_pair: tuple[Path, Path]
) -> None:
    report = measured(fresh("out"), toy_corpus, *toy_pair, 2)
    rows = pq.read_table(tmp_path / "out" / "generations.parquet").to_pylist()
    assert len(rows) == 2 * 2 * len(TASKS)
    assert {row["model"] for row in rows} == {"large", "small"}
    assert report["models"]["large"]["mean_exact_match"] == pytest.approx(
        sum(row["exact_match"] for row in rows if row["model"] == "large") / (2 * len(TASKS))
    )
    assert report["cost"]["num_parameters_ratio"] > 2


def test_more_items_than_the_corpus_has_are_refused(
    fresh: Fresh, toy_corpus: Path, toy_pair: tuple[Path, Path]
) -> None:
    with pytest.raises(ValueError, match="items_per_task is 9, the corpus has fewer test items"):
        measured(fresh("out"), toy_corpus, *toy_pair, 9)


REPORT = {
    "items_per_task": 7,
    "models": {
        "large": {"exact_match": {"sort": 0.9}, "rouge1": {"sort": 0.95}, "mean_exact_match": 0.9, "mean_rouge1": 0.95},
        "small": {"exact_match": {"sort": 0.4}, "rouge1": {"sort": 0.6}, "mean_exact_match": 0.4, "mean_rouge1": 0.6},
    },
    "drafting": {
        "acceptance_rate": 0.8,
        "content_acceptance_rate": 0.7,
        "auc": 0.95,
        "auc_content": 0.85,
        "tokens_per_round": 3.5,
        "num_drafts": 4,
        "exit_agreement_by_layer": [0.5, 1.0],
    },
    "cost": {
        "large": {"decode_ms": 4.0},
        "small": {"decode_ms": 1.0},
        "num_parameters_ratio": 19.0,
        "decode_ms_ratio": 4.0,
    },
    "machine": {"processor": "Z80"},
}


def test_the_scorecard_shows_both_models_and_what_drafting_gives():
    lines = scorecard(REPORT).splitlines()
    assert lines[0].startswith("7 test items a task")
    assert lines[2].split() == ["sort", "0.900", "0.400", "0.950", "0.600"]
    assert lines[3].split() == ["mean", "0.900", "0.400", "0.950", "0.600"]
    assert "0.800 of all tokens, 0.700 of content tokens" in lines[5]
    assert "19.0 to 1 by parameters, 4.0 to 1 measured (4.00 and 1.00 ms a token)" in lines[-2]
    assert lines[-1].split() == ["timed", "on", "Z80,", "one", "thread"]


def test_the_scorecard_of_a_pair_without_a_rejected_draft_has_no_auc():
    unknown = {"auc": None, "auc_content": None, "content_acceptance_rate": None}
    lines = scorecard({**REPORT, "drafting": {**REPORT["drafting"], **unknown}}).splitlines()
    assert "0.800 of all tokens, - of content tokens" in lines[5]
    assert lines[6].split() == ["confidence", "AUC", "-", "on", "all", "tokens,", "-", "on", "content", "tokens"]
