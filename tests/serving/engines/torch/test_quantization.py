"""Models whose linear layers are kept in 8 or 4 bits."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from serving.engines.models import QUANTIZATION_LIBRARIES
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import disable_unsupported_kernels, load_model, quantization_kwargs
from serving.messages import DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span

MISSING = [name for name in QUANTIZATION_LIBRARIES if find_spec(name) is None]
installed = pytest.mark.skipif(
    bool(MISSING), reason=f"{' and '.join(MISSING)} not installed: pip install -e '.[quantization]'"
)
both = pytest.mark.parametrize("quantization", ["int8", "nf4"])
PROMPT = (5, 17, 40, 8)
FITTING = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 4, "initializer_range": 0.1}
"""Sizes that every kernel of bitsandbytes takes."""


@pytest.fixture
def saved(causal, tmp_path):
    """Saves a tiny model, and says where: saved(variant, **settings)."""

    def save(variant="llama", **given):
        causal(variant, **given).save_pretrained(tmp_path)
        return tmp_path

    return save


def stored(model):
    """The classes of the blocks' linear layers and the dtypes of their weights."""
    modules = [m for layer in model.layers for m in layer.modules() if isinstance(m, nn.Linear)]
    return {type(m).__name__ for m in modules}, {m.weight.dtype for m in modules}


def dequantised(path, model):
    """The `transformers` model with the weights that `model` really has."""
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight

    plain = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for full, layer in zip(plain.model.layers, model.layers, strict=True):
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                weight = dequantize_bnb_weight(module.weight, getattr(module, "state", None))
                full.get_submodule(name).weight.data = weight.to(torch.float32)
    return plain.eval()


def logits(model, tokens):
    """The head's numbers over a whole text, of shape (tokens, vocabulary)."""
    engine = TorchEngine(model)
    work = ForwardWork(Span(0, len(model.layers), True, False), (SequenceSlice("a", 0, len(tokens), tokens),), ("all",))
    result = engine.execute(work)[0][0]
    with torch.inference_mode():
        return model.lm_head(model.norm(engine.tensor_store.take(result.hidden_states))).float()


@installed
@pytest.mark.parametrize("variant", ["llama", "llama_yarn", "qwen2", "phi3", "neox"])
@pytest.mark.parametrize(
    ("quantization", "kind", "dtype"), [("int8", "Linear8bitLt", torch.int8), ("nf4", "Linear4bit", torch.uint8)]
)
def test_only_the_linear_layers_of_the_blocks_are_quantised(saved, variant, quantization, kind, dtype):
    model = load_model(saved(variant), quantization=quantization)
    assert stored(model) == ({kind}, {dtype})
    assert type(model.lm_head) is nn.Linear
    assert {
        model.dtype,
        model.embed.weight.dtype,
        model.norm.weight.dtype,
        model.lm_head.weight.dtype,
    } == {torch.float32}


@installed
@both
@pytest.mark.parametrize("sizes", [{}, FITTING], ids=["sizes of no fast kernel", "sizes of every kernel"])
def test_drafts_of_a_quantised_model_match_its_forward_pass(saved, quantization, sizes):
    engine = TorchEngine(load_model(saved(**sizes), quantization=quantization))
    drafted = engine.execute(
        DraftWork("a", 0, PROMPT, DraftStopRule(8), requested_scores=("confidence", "importance"))
    )[0]
    assert all(0 < score <= 1.01 for score in drafted.scores["confidence"])
    whole = logits(engine.model, (*PROMPT, *drafted.tokens))
    assert tuple(whole[3:-1].argmax(-1).tolist()) == drafted.tokens


@installed
def test_nf4_computes_with_its_dequantised_weights(saved):
    path = saved()
    model = load_model(path, quantization="nf4")
    with torch.inference_mode():
        expected = dequantised(path, model)(torch.tensor([PROMPT])).logits[0]
    # With AVX512_BF16 bitsandbytes computes in bf16; where it has no kernel, it rounds what it dequantises.
    torch.testing.assert_close(logits(model, PROMPT), expected, rtol=1e-3, atol=5e-3)


@installed
def test_int8_is_nearer_to_the_checkpoint_than_nf4(saved):
    path = saved(**FITTING)
    full, eight, four = (logits(load_model(path, quantization=each), PROMPT) for each in ("none", "int8", "nf4"))
    spread = full.std()
    assert 0 < (eight - full).std() < 0.05 * spread
    assert (eight - full).std() < (four - full).std() < 0.5 * spread


@installed
@both
def test_quantised_rows_do_not_depend_on_each_other(saved, quantization):
    layer = load_model(saved(**FITTING), quantization=quantization).layers[0].mlp.gate_proj
    row, loud = torch.randn(1, 64, generator=torch.Generator().manual_seed(1)), torch.full((1, 64), 40.0)
    with torch.inference_mode():
        alone, beside = layer(row), layer(torch.cat([row, loud]))
    rtol = 0.0 if quantization == "int8" else 1e-4  # torch may add up a product of one row in another order
    torch.testing.assert_close(alone[0], beside[0], rtol=rtol, atol=rtol)


@installed
@both
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_cache_keeps_the_checkpoints_dtype(saved, quantization, dtype):
    model = load_model(saved(), dtype=dtype, quantization=quantization)
    engine = TorchEngine(model)
    engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(5)))
    assert model.dtype in (torch.bfloat16, torch.float16)
    assert engine.cache.nbytes == 2 * 4 * 16 * 2 * 8 * 2  # one block of 16 tokens


@installed
@both
def test_a_quantised_product_logs_nothing(saved, quantization, caplog):
    TorchEngine(load_model(saved(), quantization=quantization)).execute(DraftWork("a", 0, PROMPT, DraftStopRule(3)))
    assert not [record for record in caplog.records if record.name.startswith("bitsandbytes")]


@pytest.mark.parametrize(
    ("inputs", "outputs", "kept"), [(64, 32, True), (192, 96, True), (48, 64, False), (64, 48, False)]
)
def test_layers_of_unsuitable_sizes_avoid_the_fast_kernel(inputs, outputs, kept):
    layer = SimpleNamespace(support_avx512bf16_for_cpu=True, in_features=inputs, out_features=outputs)
    disable_unsupported_kernels(SimpleNamespace(modules=lambda: [nn.ReLU(), layer]))
    assert layer.support_avx512bf16_for_cpu is kept


def test_a_model_that_is_not_quantised_needs_no_library():
    assert quantization_kwargs("none", torch.float32, "cpu") == {}


def test_unknown_quantisations_are_refused(saved):
    with pytest.raises(ValueError, match="quantization 'awq' is not known; choose one of none, int8, nf4"):
        load_model(saved(), quantization="awq")
