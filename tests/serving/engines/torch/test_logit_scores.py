"""Statistics of logits against plain fp64 formulas."""

import pytest
import torch

from serving.core.scores import LOGIT_SCORES
from serving.engines.torch.sampling import compute_logit_stats

ROWS = {
    "wide": lambda g: torch.randn(5, 1300, generator=g) * 4,
    "offset": lambda g: torch.randn(5, 1300, generator=g) * 4 + 30,
    "peaked": lambda g: torch.nn.functional.one_hot(torch.arange(5), 50) * 40.0 + torch.randn(5, 50, generator=g),
    "flat": lambda g: torch.zeros(2, 64),
}


@pytest.mark.parametrize("kind", ROWS)
def test_logit_scores_match_fp64_formulas(kind):
    logits = ROWS[kind](torch.Generator().manual_seed(0))
    found, exact = compute_logit_stats(logits, LOGIT_SCORES), logits.double()
    probabilities = exact.softmax(-1)
    best = probabilities.topk(2).values
    want = {
        "confidence": best[:, 0],
        "margin": best[:, 0] - best[:, 1],
        "entropy": -(probabilities * exact.log_softmax(-1)).sum(-1),
        "logit_std": exact.std(-1),
    }
    for name in LOGIT_SCORES:
        assert found.scores[name] == pytest.approx(want[name].tolist(), abs=2e-4)


def test_top_candidates_are_sorted_and_start_with_the_argmax():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 5.0, 5.0, 1.0]])
    found = compute_logit_stats(logits)
    assert found.top_candidates[0] == [1, 3, 2]
    assert found.tokens == logits.argmax(-1).tolist()
    assert found.top_candidates[1][0] == found.tokens[1]
    assert sorted(found.top_candidates[1]) == [0, 1, 2]
    assert found.scores == {}


@pytest.mark.parametrize(("k", "width"), [(1, 1), (5, 5), (9, 8)])
def test_up_to_all_tokens_may_be_top_candidates(k, width):
    assert len(compute_logit_stats(torch.randn(1, 8), k=k).top_candidates[0]) == width


def test_half_precision_logits_are_scored_in_fp32():
    logits = (torch.randn(3, 200) * 3).to(torch.bfloat16)
    assert compute_logit_stats(logits, LOGIT_SCORES) == compute_logit_stats(logits.float(), LOGIT_SCORES)


def test_an_unknown_score_is_refused():
    with pytest.raises(
        ValueError, match="score 'luck' is not known; choose among confidence, margin, entropy, logit_std"
    ):
        compute_logit_stats(torch.zeros(1, 4), ("luck",))
