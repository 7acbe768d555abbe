from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from training.embedded_pair.initialisation import initialise
from training.embedded_pair.llama import Llama, _rms_norm, _rotate, rope_tables
from training.embedded_pair.model_config import InitConfig, LlamaSizes

SIZES = LlamaSizes(hidden_size=128, layers=2, heads=4, intermediate_size=128)
VOCABULARY = 300


def started(start: InitConfig, seed: int = 0) -> Llama:
    model = Llama(SIZES, VOCABULARY)
    initialise(model, start, seed)
    return model


@torch.no_grad()
def attention(model: Llama, ids: Tensor, layer: int) -> Tensor:
    """Attention probabilities (heads, length, length) of one layer."""
    length = len(ids)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    (cos, sin), bias = rope_tables(SIZES, length), torch.zeros(length, length).masked_fill(~causal, float("-inf"))
    x = F.embedding(ids[None], model.embedding)
    for block in model.layers()[:layer]:
        x = block(x, cos, sin, bias)
    block = model.layers()[layer]
    normed = _rms_norm(x, block.attention_norm)[0]
    query, key = (F.linear(normed, weight).view(length, 4, 32).transpose(0, 1) for weight in block.qkv[:2])
    scores = _rotate(query, cos, sin) @ _rotate(key, cos, sin).mT / 32**0.5
    return (scores + bias).softmax(-1)


def test_heads_start_as_previous_token_heads() -> None:
    ids = torch.randint(0, VOCABULARY, (30,), generator=torch.Generator().manual_seed(1))
    chances = attention(started(InitConfig(look_back_offsets=(1, 3), sharpness=4.0)), ids, layer=0)
    for head, distance in ((0, 1), (1, 3)):
        assert chances[head].diagonal(-distance)[3:].min() > 0.6
    assert chances[2:].diagonal(-1, 1, 2).mean() < 0.3


def test_heads_start_as_induction_heads() -> None:
    once = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(2))[:20]
    twice = torch.cat([once, once])
    followers = (torch.arange(20, 39), torch.arange(1, 20))
    wired, plain = (
        attention(started(start), twice, layer=1)[:, *followers].mean()
        for start in (InitConfig(look_back_offsets=(1, 1), induction_score=10.0), InitConfig(look_back_offsets=(1, 1)))
    )
    assert wired > 0.3 > 3 * plain


def test_values_are_copied_except_what_all_tokens_share() -> None:
    block = started(InitConfig(copy_scale=0.5)).layers()[1]
    copied = (block.out @ block.qkv[2]).detach()
    assert copied.diagonal().mean() == pytest.approx(0.5, abs=0.05)
    assert copied.triu(1).abs().mean() < 0.05


def test_initialisation_is_decided_by_its_seed() -> None:
    start = InitConfig(look_back_offsets=(1,), induction_score=5.0)
    first, again, other = (started(start, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding"], other["embedding"])


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"look_back_offsets": (1,) * 5}, "names 5 heads, a layer has 4"),
        (
            {"look_back_offsets": (1,) * 3, "induction_score": 5.0},
            "init.induction_score takes as many heads again as look_back_offsets names",
        ),
        ({"look_back_offsets": (0,)}, "look_back_offsets must be whole numbers of 1 or more"),
        ({"look_back_offsets": (1,), "shared_norm": 0.0}, "look_back_offsets needs init.shared_norm above 0"),
        ({"induction_score": 5.0}, "induction_score needs init.look_back_offsets"),
        ({"copy_scale": -1.0}, "scales must be 0 or more"),
    ],
)
def test_invalid_initialisations_are_refused(start: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        started(InitConfig(**start))  # type: ignore[arg-type]
