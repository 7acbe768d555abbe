from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from training.embedded_pair import corpus, quality, tokenizer
from training.embedded_pair.draft_quality import content_mask, measure_drafts, tokens_per_round
from training.fitting.cluster_statistics import auc


def flags(text: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([letter == "x" for letter in text])


def test_auc_of_a_known_ranking() -> None:
    scores = np.array([0.9, 0.8, 0.3, 0.3, 0.1])
    assert auc(scores, flags("xx...")) == 1.0
    assert auc(scores, flags("...xx")) == pytest.approx((0.5 + 0) / 6)
    assert auc(scores, flags("xxxxx")) is None is auc(scores, flags("....."))


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ("xxxxx", 5.0),  # four accepted and the bonus token
        ("xxxxxxxxxx", 5.0),
        ("..", 1.0),
        ("x.xx.", 2.5),
        ("xx", 2.0),  # the end comes before the window is full
    ],
)
def test_tokens_per_round_of_known_acceptance(accepted: str, expected: float) -> None:
    assert tokens_per_round([flags(accepted)], num_drafts=4) == expected


def test_content_mask_marks_pieces_of_content_words(toy_corpus: Path) -> None:
    words = tokenizer.load(toy_corpus / "tokenizer")
    [output] = tokenizer.answer_ids(words, ["It is made by the zzyzx. In order they are 1 2."])
    pieces = words.batch_decode([[token] for token in output])
    marked = [piece.strip() for piece, content in zip(pieces, content_mask(words, output), strict=True) if content]
    assert "".join(marked) == "zzyzx12"


def test_drafts_are_those_of_one_forward_each(toy_corpus: Path, toy_pair: tuple[Path, Path]) -> None:
    large, small = (quality.load(checkpoint) for checkpoint in toy_pair)
    words, rows = tokenizer.load(toy_pair[0]), corpus.load(toy_corpus, "test")[:12]
    prompts = [row["prompt"] for row in rows]
    ids, outputs = (
        tokenizer.prompt_ids(words, prompts),
        quality.generate_greedy(large, words, prompts, max_new_tokens=6),
    )
    drafts = measure_drafts(small, words, ids, outputs)
    for number, (prompt, output) in enumerate(zip(ids, outputs, strict=True)):
        with torch.no_grad():
            chances = small(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].softmax(-1)
        assert drafts.accepted[number].tolist() == (chances.argmax(-1) == torch.tensor(output)).tolist()
        np.testing.assert_allclose(drafts.confidence[number], chances.amax(-1).numpy(), rtol=1e-3)
        assert drafts.exit_agreement[number].shape == (4, len(output))
        assert drafts.exit_agreement[number][-1].all()
