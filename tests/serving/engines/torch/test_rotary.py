"""Rotary tables against the model's own module."""

import pytest
import torch

from serving.engines.torch.model import RotaryEmbedding


def _both(causal, variant):
    model = causal(variant)
    module = model.base_model.rotary_emb
    return module, RotaryEmbedding(module, model.config, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("variant", ["llama", "llama_yarn", "neox", "phi3"])
def test_rotary_tables_equal_those_of_transformers(causal, variant):
    module, rotary = _both(causal, variant)
    for first, last in ((0, 3), (700, 702), (5, 6)):
        want = module(torch.empty(0), position_ids=torch.arange(first, last)[None])
        torch.testing.assert_close(rotary.for_range(first, last), want)
    want = module(torch.empty(0), position_ids=torch.tensor([[9, 3, 3, 80]]))
    torch.testing.assert_close(rotary.for_positions([9, 3, 3, 80], 81), want)


def test_longrope_switches_factors_by_sequence_length(causal):
    module, rotary = _both(causal, "phi3_longrope")
    for first, last in ((0, 40), (0, 41), (38, 39), (100, 101), (0, 5)):
        want = module(torch.empty(0), position_ids=torch.arange(first, last)[None])
        torch.testing.assert_close(rotary.for_range(first, last), tuple(part.clone() for part in want))
    assert (rotary.for_range(0, 40)[0] - rotary.for_range(0, 41)[0][:, :40]).abs().max() > 0.1


def test_dynamic_scaling_is_refused(causal):
    model = causal("llama")
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(ValueError, match="rope type 'dynamic' changes past positions"):
        RotaryEmbedding(model.base_model.rotary_emb, model.config, torch.float32, torch.device("cpu"))
