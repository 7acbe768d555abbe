"""Packed weights and fused layers compute what the layers of `transformers` do, up to rounding."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from serving.engines.torch.draft_heads import attach_adapter, init_adapter, init_medusa_heads, load_medusa_heads
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import DecomposedModel, decompose
from serving.engines.torch.packed_layers import (
    MIN_PACKED,
    FusedLayer,
    PackedLinear,
    PackedWeight,
    PlainWeight,
    pack_weights,
    packs,
    smallest_packed,
)
from serving.learned import medusa
from serving.learned.medusa import MedusaHeads
from serving.messages import DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span
from tests.serving.engines.torch.test_batch_invariance import VARIANTS, logits_of, one_by_one, packed, sessions

MODELS = (*VARIANTS, "qwen2")
BF16 = pytest.mark.skipif(not packs(torch.bfloat16), reason="this CPU does not multiply in bf16")
THRESHOLDS = [0, 2**40]
"""All weights are packed, or none; layers are fused with both."""


def packed_model(causal: Any, min_packed: int = 0, batch_invariant: bool = False) -> DecomposedModel:
    model = decompose(causal, batch_invariant=batch_invariant)
    pack_weights(model, min_packed=min_packed)
    return model


def test_trained_heads_are_loaded_beside_packed_weights(causal: Any, tmp_path: Path) -> None:
    """A head starts as a copy of the target's, whose packed weights cannot be read."""
    heads = init_medusa_heads(decompose(causal("llama")), 2)
    save_file({name: weight.contiguous() for name, weight in heads.state_dict().items()}, tmp_path / medusa.WEIGHTS)
    header = MedusaHeads(2, ((0,), (0, 0)), num_parameters=1, folder=str(tmp_path))
    model = packed_model(causal("llama"))
    proposed = load_medusa_heads(model, header, model.vocab_size).propose(torch.ones(model.hidden_size))
    assert len(proposed.tokens) == 2


@pytest.mark.parametrize("min_packed", THRESHOLDS)
@pytest.mark.parametrize("variant", MODELS)
def test_logits_are_those_of_the_plain_model(causal: Any, variant: str, min_packed: int) -> None:
    whole = causal(variant)
    plain, fast = decompose(copy.deepcopy(whole)), packed_model(whole, min_packed)
    for want, found in zip(logits_of(plain, packed()), logits_of(fast, packed()), strict=True):
        assert found.shape == want.shape
        assert (found - want).abs().max() < 1e-5


@BF16
@pytest.mark.parametrize("variant", MODELS)
def test_bf16_is_as_near_to_fp32_as_the_plain_models(causal: Any, variant: str) -> None:
    whole = causal(variant)
    exact, halved = logits_of(decompose(copy.deepcopy(whole)), packed()), whole.to(torch.bfloat16)
    plain, fast = decompose(copy.deepcopy(halved)), packed_model(halved)
    errors = [
        sum(float((found - want).abs().mean()) for found, want in zip(logits_of(model, packed()), exact, strict=True))
        for model in (plain, fast)
    ]
    assert 0 < errors[1] < 1.25 * errors[0]


@pytest.mark.parametrize("variant", MODELS)
def test_layers_of_llamas_kind_are_fused_and_the_others_packed(causal: Any, variant: str) -> None:
    model = packed_model(causal(variant))
    fused = variant in ("llama", "mistral", "qwen2", "qwen3")
    assert all(isinstance(layer, FusedLayer) is fused for layer in model.layers)
    assert isinstance(model.lm_head, PackedLinear)
    linears = [each for layer in model.layers for each in layer.modules() if isinstance(each, torch.nn.Linear)]
    assert all(isinstance(each, PackedLinear) for each in linears)
    assert bool(linears) is not fused


def test_small_weights_stay_as_they_are(causal: Any) -> None:
    layer: Any = packed_model(causal("llama"), 2**40).layers[0]
    assert all(isinstance(weight, PlainWeight) for weight in layer.products.values())
    model = packed_model(causal("llama"), causal("llama").config.hidden_size ** 2 + 1)
    products: Any = model.layers[0]
    assert {name for name, weight in products.products.items() if isinstance(weight, PlainWeight)} == {"o"}
    assert all(isinstance(weight, PackedWeight) for name, weight in products.products.items() if name != "o")


@pytest.mark.parametrize(
    ("amx", "dtype", "rows", "packs_them"),
    [
        (True, torch.float32, 3, False),
        (True, torch.float32, 4, True),
        (True, torch.float32, None, True),
        (True, torch.bfloat16, 1, True),
        (False, torch.float32, 1, True),
    ],
)
def test_few_rows_have_plain_weights_where_packed_ones_are_slower(
    monkeypatch: pytest.MonkeyPatch, amx: bool, dtype: torch.dtype, rows: int | None, packs_them: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert (smallest_packed(dtype, rows) == MIN_PACKED) is packs_them


def test_a_layer_that_models_share_is_packed_once(causal: Any) -> None:
    target = decompose(causal("llama"))
    drafter = attach_adapter(target, 1, init_adapter(target, 1))
    pack_weights(drafter, min_packed=0)
    before: Any = drafter.layers[0]
    products = before.products
    pack_weights(target, min_packed=0)
    assert target.layers[0] is before
    assert before.products is products
    assert isinstance(target.layers[1], FusedLayer)
    assert not isinstance(drafter.layers[1], FusedLayer)  # an adapter has no MLP


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=BF16)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_invariant_model_stays_so(causal: Any, variant: str, dtype: torch.dtype) -> None:
    model = packed_model(causal(variant).to(dtype), batch_invariant=True)
    assert isinstance(model.lm_head, PackedLinear)
    assert not any(isinstance(layer, FusedLayer) for layer in model.layers)
    for one, other in zip(logits_of(model, one_by_one()), logits_of(model, packed()), strict=True):
        assert torch.equal(one, other)


def test_the_engine_decides_as_with_the_plain_model(causal: Any) -> None:
    whole = causal("llama")
    engines = [TorchEngine(decompose(copy.deepcopy(whole))), TorchEngine(packed_model(whole))]
    span = Span(0, len(engines[0].model.layers), True, True)
    work = DraftWork("a", 0, tuple(sessions()[0]), DraftStopRule(8), (), requested_scores=("confidence", "importance"))
    drafts, others = (engine.execute(work)[0] for engine in engines)
    assert drafts.tokens == others.tokens
    for name, scores in drafts.scores.items():
        assert others.scores[name] == pytest.approx(scores, abs=1e-5)
    verified = [
        engine.execute(
            ForwardWork(span, (SequenceSlice("a", 0, 9, (*sessions()[0][:1], *drafts.tokens), 8, "greedy"),), ("last",))
        )[0][0].verdict
        for engine in engines
    ]
    assert verified[0] == verified[1]


def test_another_number_format_stays_plain(causal: Any) -> None:
    model = packed_model(causal("llama").to(torch.float16))
    assert not any(isinstance(each, (FusedLayer, PackedLinear)) for layer in model.layers for each in layer.modules())


TWO_MODELS = """
import sys
from pathlib import Path
from serving.engines.torch.model import load_model
from serving.engines.torch.packed_layers import pack_weights

def held_mb():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1000

load_model(sys.argv[1])  # glibc takes larger pieces from its heaps from now on
before = held_mb()
models = [load_model(sys.argv[1]) for _ in range(2)]
for model in models:
    pack_weights(model)
print(held_mb() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_packed_models_are_held_once(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=512, hidden_size=512, intermediate_size=1536, num_hidden_layers=12, num_attention_heads=8
    )
    causal = LlamaForCausalLM(config).to(torch.bfloat16)
    causal.save_pretrained(tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", TWO_MODELS, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    weights_mb = 2 * sum(each.numel() for each in causal.parameters()) * 4 / 1e6
    assert float(found.stdout) < 1.4 * weights_mb
