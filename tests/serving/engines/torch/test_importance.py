"""Importance against the attention weights that `transformers` gives out with its eager attention."""

import copy

import pytest
import torch

from serving.core.scores import IMPORTANCE_SCORES
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.messages import DraftStopRule, DraftWork

PROMPT = (5, 17, 40, 8, 23, 61, 9, 30, 77, 12, 4)


def _weights(causal, tokens, layers):
    """Attention (rows, columns), averaged over heads and layers."""
    eager = copy.deepcopy(causal)
    eager.set_attn_implementation("eager")
    with torch.inference_mode():
        out = eager(torch.tensor([tokens]), output_attentions=True)
    return torch.stack([out.attentions[i][0].mean(0) for i in layers]).mean(0)


def _naive(weights, first, drafted, name="importance"):
    """By slices of the matrix: the columns of the draft's fed tokens."""
    fed = drafted - 1
    draft = weights[first : first + fed, first : first + fed].tril(-1 if "later" in name else 0)
    rows = torch.arange(fed, 0, -1) - int("later" in name) if "mean" in name else torch.ones(fed)
    values = (draft.sum(0) / rows.clamp(min=1)).tolist()
    return [*values, sum(values) / fed]


@pytest.mark.parametrize("variant", ["llama", "qwen3", "qwen2_mixed", "mistral", "phi3", "neox"])
def test_importance_is_the_column_sum_of_attention(causal, variant):
    whole = causal(variant)
    engine = TorchEngine(decompose(copy.deepcopy(whole)))
    drafted = engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(6), requested_scores=("importance",)))[0]
    weights = _weights(whole, (*PROMPT, *drafted.tokens), range(4))
    assert drafted.scores["importance"] == pytest.approx(_naive(weights, len(PROMPT), 6), abs=1e-5)


def test_more_tokens_than_a_sliding_window_sees(causal):
    whole = causal("mistral")
    engine = TorchEngine(decompose(copy.deepcopy(whole)))
    drafted = engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(14), requested_scores=("importance",)))[0]
    weights = _weights(whole, (*PROMPT, *drafted.tokens), range(4))
    assert drafted.scores["importance"] == pytest.approx(_naive(weights, len(PROMPT), 14), abs=1e-5)


def test_importance_counts_only_the_probed_layers(llama):
    engine = TorchEngine(decompose(copy.deepcopy(llama)), importance_layers=frozenset({1, 3}))
    drafted = engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(4), requested_scores=("importance",)))[0]
    weights = _weights(llama, (*PROMPT, *drafted.tokens), (1, 3))
    assert drafted.scores["importance"] == pytest.approx(_naive(weights, len(PROMPT), 4), abs=1e-5)


def test_a_single_draft_has_the_self_attention_of_its_row_as_importance(llama):
    engine = TorchEngine(decompose(copy.deepcopy(llama)))
    drafted = engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(1), requested_scores=("importance",)))[0]
    weights = _weights(llama, PROMPT, range(4))
    assert drafted.scores["importance"] == pytest.approx((float(weights[-1, -1]),), abs=1e-5)


@pytest.mark.parametrize("name", IMPORTANCE_SCORES)
def test_every_reading_of_importance(llama, name):
    engine = TorchEngine(decompose(copy.deepcopy(llama)))
    drafted = engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(5), requested_scores=(name,)))[0]
    last = len(llama.model.layers) - 1
    weights = _weights(llama, (*PROMPT, *drafted.tokens), [last] if name.endswith("last_layer") else range(last + 1))
    assert drafted.scores[name] == pytest.approx(_naive(weights, len(PROMPT), 5, name), abs=1e-5)


def test_a_single_draft_has_no_later_rows(llama):
    engine = TorchEngine(decompose(copy.deepcopy(llama)))
    asked = ("importance", "importance_later_sum")
    drafted = engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(1), requested_scores=asked))[0]
    assert drafted.scores["importance"][0] > 0
    assert drafted.scores["importance_later_sum"] == (0.0,)
