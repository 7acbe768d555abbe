from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.embedded_pair import llama
from training.embedded_pair.model_config import LlamaSizes


def causal(rows: int, length: int) -> torch.Tensor:
    return torch.ones(rows, length, length, dtype=torch.bool).tril()


def test_logits_equal_those_of_the_saved_checkpoint(toy_pair: tuple[Path, Path]) -> None:
    ids = torch.randint(0, 500, (3, 40), generator=torch.Generator().manual_seed(0))
    for checkpoint in toy_pair:
        ours, theirs = llama.load(checkpoint), AutoModelForCausalLM.from_pretrained(checkpoint)
        with torch.no_grad():
            logits = ours.logits(ours.hidden_states(ids, causal(3, 40), torch.float32))
            torch.testing.assert_close(logits, theirs(ids).logits, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_is_complete(toy_pair: tuple[Path, Path]) -> None:
    model, words = AutoModelForCausalLM.from_pretrained(toy_pair[0]), AutoTokenizer.from_pretrained(toy_pair[0])
    assert model.config.model_type == "llama"
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == words.eos_token_id
    assert words.chat_template


def test_bf16_states_are_close_to_fp32(toy_pair: tuple[Path, Path]) -> None:
    model, ids = llama.load(toy_pair[0]), torch.arange(30)[None]
    with torch.no_grad():
        exact, near = (model.hidden_states(ids, causal(1, 30), kind) for kind in (torch.float32, torch.bfloat16))
    assert near.dtype == torch.bfloat16
    assert (exact - near.float()).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"heads": 3}, "must be a multiple of 2 x heads"), ({"layers": 0}, "architecture.layers must be above 0, got 0")],
)
def test_invalid_model_sizes_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LlamaSizes(**{"hidden_size": 64, "layers": 2, "heads": 2, "intermediate_size": 96} | changes)
