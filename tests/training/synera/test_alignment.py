"""Logits and drafts by hand, and a toy pair against `transformers`."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.core.decoding import Decoding
from serving.deployment.model_loading import load_models, make_queries
from serving.engines.models import Checkpoint
from serving.messages import DraftDecision
from serving.progress import silent
from serving.workload.datasets.tiny import TinyTasks
from serving.workload.workload import Workload
from training.embedded_pair import quality, tokenizer
from training.embedded_pair.draft_quality import measure_drafts
from training.synera import stages
from training.synera.alignment import Alignment, align, drafted_importance, top_k_hits
from training.synera.alignment_report import CONFIDENCE_BINS, TOKEN


def test_hits_and_confidence_of_logits() -> None:
    """The likeliest token of 7 first, then the rest in order: token 5 is the sixth, so no top-5 hit."""
    logits = torch.log(torch.tensor([[0.4, 0.2, 0.14, 0.1, 0.08, 0.05, 0.03]])).expand(4, 7)
    confidence, top_1, top_5 = top_k_hits(logits, [0, 1, 4, 5])
    assert confidence == pytest.approx([0.4] * 4)
    assert top_1.tolist() == [True, False, False, False]
    assert top_5.tolist() == [True, True, True, False]


def test_a_vocabulary_smaller_than_five_has_hits_alone() -> None:
    assert top_k_hits(torch.zeros(1, 3), [2])[2].all()


def chunk(at: int, importance: tuple[float, ...], accepted: int) -> DraftDecision:
    return DraftDecision("s", at, tuple(range(len(importance))), {"importance": importance}, accepted)


def test_drafts_are_counted_up_to_their_first_miss() -> None:
    """Behind 10 tokens: a whole draft and its bonus token, a draft cut at its second token, one at its first."""
    chunks = [chunk(10, (0.1, 0.2), 2), chunk(13, (0.3, 0.4, 0.5), 1), chunk(15, (0.6, 0.7), 0)]
    found = drafted_importance(chunks, prompt_len=10, answer_len=6)
    np.testing.assert_array_equal(found, [0.1, 0.2, np.nan, 0.3, 0.4, 0.6])


def test_a_draft_longer_than_the_answer_is_cut_with_it() -> None:
    assert drafted_importance([chunk(5, (0.1, 0.2, 0.3), 3)], prompt_len=5, answer_len=2).tolist() == [0.1, 0.2]


@dataclass(frozen=True)
class Toy:
    """The toy pair's alignment, and the prompts it was measured on."""

    found: Alignment
    prompts: list[str]
    pair: tuple[Path, Path]


@pytest.fixture(scope="module")
def workload(toy_corpus: Path) -> Workload:
    return Workload(dataset=TinyTasks(corpus=toy_corpus), num_prompts=12, max_prompt_tokens=192, max_new_tokens=12)


@pytest.fixture(scope="module")
def toy(workload: Workload, toy_pair: tuple[Path, Path]) -> Toy:
    models = load_models(Checkpoint(path=toy_pair[1]), Checkpoint(path=toy_pair[0]))
    asked = make_queries(workload, Decoding(), 0, 1, models.tokenizer)
    return Toy(align(models, asked, 4, 0, silent), [query.prompt.text for query in asked], toy_pair)


def test_token_scores_equal_those_of_one_forward_pass_of_transformers(toy: Toy) -> None:
    large, small = (quality.load(checkpoint) for checkpoint in toy.pair)
    words = tokenizer.load(toy.pair[0])
    outputs = quality.generate_greedy(large, words, toy.prompts, max_new_tokens=12)
    known = measure_drafts(small, words, tokenizer.prompt_ids(words, toy.prompts), outputs)
    tokens = toy.found.tokens
    assert np.bincount(tokens.answer).tolist() == [len(output) for output in outputs]
    np.testing.assert_array_equal(tokens.top_1, np.concatenate(known.accepted))
    np.testing.assert_array_equal(tokens.content, np.concatenate(known.is_content))
    # `draft` counts the padding of the vocabulary in, the engine does not
    np.testing.assert_allclose(tokens.confidence, np.concatenate(known.confidence), rtol=1e-2)


def test_every_cut_draft_has_one_miss(toy: Toy) -> None:
    """Each cut draft has one miss among the judged tokens, and a whole one has none."""
    judged = ~np.isnan(toy.found.tokens.importance)
    assert judged.any()
    assert (judged & ~toy.found.tokens.top_1).sum() == toy.found.drafts.has_rejection.sum()
    assert (toy.found.tokens.top_5 >= toy.found.tokens.top_1).all()


def test_the_stage_leaves_rows_metrics_and_figures(
    workload: Workload, toy_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    large, small = (Checkpoint(path=path) for path in toy_pair)
    stages.measure_alignment(tmp_path, progress=silent, device=small, cloud=large, workload=workload)
    table, metrics = (json.loads((tmp_path / name).read_text()) for name in ("rows.json", "metrics.json"))
    shares = [np.mean(row["share"]) for row in list(table[TOKEN].values())[: len(CONFIDENCE_BINS)]]
    assert sum(shares) == pytest.approx(1)
    assert metrics["answers"] == 12
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.png" for name in ("confidence_cdf", "hit_rate", "importance_cdf")
    }
