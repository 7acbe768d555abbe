"""Blocks' costs against Llama-3-8B's by hand, and against the totals that the architecture itself gives."""

from dataclasses import replace

import pytest

from serving.hardware.architecture import adapter_draft_architecture
from serving.hardware.latency import batch_load
from serving.hardware.replica_packing import ReplicaDemand
from serving.policy.partition.costs import block_costs
from tests.support.conf_files import architecture, names

LLAMA = architecture("llama3_8b")
MATMUL = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
"""Queries and output; keys and values of 8 heads; gate, up and down."""
MATRIX = 128256 * 4096
"""Embedding, and head."""


def test_a_block_of_llama_3_8b_by_hand():
    """64 tokens in, 128 out (section V-A), one session."""
    made = block_costs(LLAMA, "fp16", 64, 128, include_embed_head=False)
    assert MATMUL == 218_103_808
    pair = 4 * 32 * 128
    assert set(made.prefill_flops) == {2 * MATMUL * 64 + pair * 64 * 64}
    assert set(made.decode_flops) == {2 * MATMUL * 127 + pair * sum(range(65, 192))}
    assert set(made.weights_nbytes) == {2 * (MATMUL + 2 * 4096)}
    assert set(made.kv_nbytes) == {192 * 2 * 8 * 128 * 2}
    assert set(made.activation_nbytes) == {64 * 65536 * 2}
    assert len(made.flops) == 32
    assert made.flops[7] == made.prefill_flops[7] + made.decode_flops[7]
    assert made.nbytes[7] == 436_224_000 + 786_432 + 8_388_608


def test_embedding_and_head_are_charged_to_the_ends():
    bare, made = block_costs(LLAMA, "fp16", 64, 128, include_embed_head=False), block_costs(LLAMA, "fp16", 64, 128)
    assert made.weights_nbytes[0] - bare.weights_nbytes[0] == 2 * MATRIX
    assert made.weights_nbytes[-1] - bare.weights_nbytes[-1] == 2 * (MATRIX + 4096)
    assert made.activation_nbytes[-1] - bare.activation_nbytes[-1] == 4 * 128256
    assert made.prefill_flops[-1] - bare.prefill_flops[-1] == 2 * MATRIX
    assert made.decode_flops[-1] - bare.decode_flops[-1] == 127 * 2 * MATRIX
    assert made.flops[0] == bare.flops[0]
    assert (made.flops[1:-1], made.nbytes[1:-1]) == (bare.flops[1:-1], bare.nbytes[1:-1])


def test_sessions_add_caches_and_logits_and_leave_one_request_s_flops():
    one, many = block_costs(LLAMA, "fp16", 64, 128), block_costs(LLAMA, "fp16", 64, 128, sessions=100)
    assert many.kv_nbytes == tuple(100 * each for each in one.kv_nbytes)
    assert many.activation_nbytes[0] == 100 * 65536 * 2
    assert many.activation_nbytes[-1] == 100 * 65536 * 2 + 100 * 4 * 128256
    assert (many.flops, many.weights_nbytes) == (one.flops, one.weights_nbytes)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_costs_of_blocks_sum_to_the_whole_model(precision):
    for name in names("model/architecture"):
        shape = architecture(name)
        made = block_costs(shape, precision, 96, 33, sessions=3)
        shared = shape.head_nbytes(precision) if shape.tied_embeddings else 0
        assert sum(made.weights_nbytes) == pytest.approx(shape.weights_nbytes(precision) + shared, abs=1), name
        assert sum(made.kv_nbytes) == 3 * 129 * shape.kv_nbytes_per_token(precision), name
        tokens, interactions = 96 + 32, 96 * 96 + sum(range(97, 129))
        body = 2 * shape.matmul_parameters * tokens + shape.flops_per_interaction() * interactions
        assert sum(made.flops) == pytest.approx(body + 33 * 2 * shape.head_parameters, rel=1e-12), name
        inner = block_costs(shape, precision, 96, 33, include_embed_head=False)
        assert sum(inner.weights_nbytes) == shape.blocks_nbytes(precision), name


def test_requests_are_counted_as_in_the_latency_model():
    """A latency of one second a FLOP takes as many seconds as there are FLOPs."""
    from serving.hardware.latency import LinearLatency

    pairs = LLAMA.flops_per_interaction()
    a_flop_s = LinearLatency(2 * LLAMA.matmul_parameters, pairs, 0, 0, 32, "FLOPs", 2 * LLAMA.head_parameters)
    assert sum(block_costs(LLAMA, "fp16", 64, 128).flops) == ReplicaDemand(64, 128).seconds(a_flop_s)
    assert sum(block_costs(LLAMA, "fp16", 64, 128).prefill_flops) == a_flop_s.seconds(batch_load(32, [(0, 64)], 1))


def test_the_first_new_token_is_part_of_the_prefill():
    made = block_costs(LLAMA, "fp16", 64, 1)
    assert set(made.decode_flops) == {0.0}


def test_quantised_blocks_and_blocks_without_an_mlp():
    small = block_costs(LLAMA.quantized("nf4"), "fp16", 64, 128, include_embed_head=False)
    assert set(small.weights_nbytes) == {MATMUL * 4.5 / 8 + 2 * 2 * 4096}
    adapter = adapter_draft_architecture(LLAMA, 2)
    made = block_costs(adapter, "fp16", 64, 128, include_embed_head=False)
    assert made.weights_nbytes[0] == made.weights_nbytes[1] == 436_224_000
    assert made.weights_nbytes[2] == 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096)
    assert sum(made.weights_nbytes) == adapter.blocks_nbytes("fp16")


def test_a_tied_embedding_is_stored_at_both_ends():
    tied = replace(LLAMA, tied_embeddings=True)
    assert block_costs(tied, "fp16", 64, 128) == block_costs(LLAMA, "fp16", 64, 128)


@pytest.mark.parametrize("name", ["prompt_tokens", "new_tokens", "sessions"])
def test_requests_without_tokens_are_refused(name):
    with pytest.raises(ValueError, match=f"partition: {name} is 0; it must be at least 1"):
        block_costs(LLAMA, "fp16", **({"prompt_tokens": 1, "new_tokens": 1} | {name: 0}))
