import pytest

from serving.hardware.architecture import Architecture
from tests.support.conf_files import architecture, names

PAPERS = {
    "llama2_7b",
    "llama2_13b",
    "llama2_70b",
    "tinyllama_1_1b",
    "llama_160m",
    "llama_68m",
    "yi_6b",
    "yi_34b",
    "falcon_7b",
    "falcon_40b",
    "qwen3_0_6b",
    "qwen3_1_7b",
    "qwen3_4b",
    "qwen3_8b",
    "qwen3_14b",
    "qwen3_32b",
    "qwen2_5_0_5b",
    "qwen2_5_32b",
    "qwen2_1_5b",
    "qwen2_72b",
    "vicuna_68m",
    "vicuna_7b",
    "vicuna_13b",
    "llama3_8b",
    "phi3_medium",
}


def test_every_model_of_the_papers_has_an_architecture():
    assert set(names("model/architecture")) >= PAPERS


@pytest.mark.parametrize("name", names("model/architecture"))
def test_parameter_count_is_the_published_one(name):
    shape = architecture(name)
    assert shape.name == name
    assert shape.parameters() == pytest.approx(shape.published_parameters, rel=0.02)
    assert shape.heads * shape.head_dim == shape.hidden_size or name.startswith("qwen3")


def test_published_counts_that_several_public_sources_print():
    counts = {"llama2_7b": 6_738_415_616, "llama2_70b": 68_976_648_192, "qwen3_32b": 32_762_123_264}
    counts |= {"yi_34b": 34_388_917_248, "phi3_medium": 13_960_238_080, "qwen3_0_6b": 596_049_920}
    for name, count in counts.items():
        assert architecture(name).published_parameters == count


def test_bytes_follow_from_the_shape():
    llama = architecture("llama2_13b")
    assert llama.weights_nbytes("fp16") == 2 * llama.parameters()
    assert llama.weights_nbytes("int4") == round(llama.parameters() * 4.5 / 8)
    assert llama.kv_nbytes_per_token("fp16") == 2 * 40 * 5120 * 2
    assert llama.kv_nbytes_per_token("int4") == llama.kv_nbytes_per_token("fp16")


def test_grouped_heads_shrink_the_cache_and_not_the_queries():
    grouped, full = architecture("tinyllama_1_1b"), architecture("llama_160m")
    assert grouped.kv_nbytes_per_token("fp16") == 2 * 22 * 4 * 64 * 2
    assert full.kv_nbytes_per_token("fp16") == 2 * 12 * 768 * 2


def test_flops_are_two_per_multiplied_weight():
    llama = architecture("llama2_7b")
    embedding_and_norms = llama.embedding_parameters + (2 * llama.layers + 1) * llama.hidden_size
    assert llama.flops_per_token() == 2 * (llama.parameters() - embedding_and_norms)
    assert llama.flops_per_interaction() == 4 * 32 * 4096


def test_activations_grow_with_rows_and_with_logits():
    llama = architecture("llama2_7b")
    one, two = llama.activation_nbytes(1, "fp16"), llama.activation_nbytes(2, "fp16")
    assert two - one == (5 * 4096 + 2 * 4096 + 3 * 11008) * 2
    assert llama.activation_nbytes(1, "fp16", head_tokens=3) - one == 2 * 32000 * 4


def test_impossible_shapes_are_refused():
    shape = {
        "name": "x",
        "layers": 2,
        "hidden_size": 8,
        "heads": 4,
        "kv_heads": 3,
        "head_dim": 2,
        "intermediate_size": 16,
    }
    with pytest.raises(ValueError, match="heads=4 is not a multiple of kv_heads=3"):
        Architecture(**shape, vocab_size=10, published_parameters=1, source="made up")
    with pytest.raises(ValueError, match="vocab_size=0 must be at least 1"):
        Architecture(**{**shape, "kv_heads": 2}, vocab_size=0, published_parameters=1, source="made up")


@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8), ("nf4", 4.5)])
def test_a_quantised_shape_keeps_its_embedding_and_head(quantization, bits):
    plain = architecture("tinyllama_1_1b")
    shape = plain.quantized(quantization)
    linear = 22 * (2048 * 64 * 2 * (32 + 4) + 3 * 2048 * 5632)
    assert shape.name == f"tinyllama_1_1b_{quantization}"
    assert shape.weights_nbytes("fp16") == linear * bits / 8 + 2 * (plain.parameters() - linear)
    assert shape.head_nbytes("fp16") == plain.head_nbytes("fp16") == 2 * 32000 * 2048
    assert shape.blocks_nbytes("fp16") == linear * bits / 8 + 22 * 2 * 2 * 2048
    assert shape.kv_nbytes_per_token("fp16") == plain.kv_nbytes_per_token("fp16")
    assert shape.flops_per_token() == plain.flops_per_token()


def test_bytes_of_the_parts_make_up_the_whole():
    for name in names("model/architecture"):
        shape = architecture(name)
        outside = shape.parameters() - shape.blocks_parameters
        for precision, nbytes in (("fp32", 4), ("fp16", 2), ("int8", 1), ("int4", 4.5 / 8)):
            whole = shape.blocks_nbytes(precision) + outside * nbytes
            assert shape.weights_nbytes(precision) == round(whole) == round(shape.parameters() * nbytes)


def test_a_shape_is_quantised_once():
    shape = architecture("tinyllama_1_1b").quantized("nf4")
    assert shape.quantized("nf4") is shape
    with pytest.raises(ValueError, match="tinyllama_1_1b_nf4 is quantised to nf4, not to int8"):
        shape.quantized("int8")
