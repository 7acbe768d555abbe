"""Random weights in published shapes: as many as were published, refused where there is no room or no such layer."""

from __future__ import annotations

import pytest
import torch

from serving.engines.torch import packed_layers
from serving.hardware.architecture import Architecture
from serving.messages import DraftStopRule, DraftWork
from tests.support.conf_files import architecture, names
from training.latency.published import check_memory, published_engine, random_model, transformers_config
from training.latency.timing import Accelerator

TOYS = [
    Architecture("llama", 2, 64, 4, 2, 16, 128, 300, 0, "toy"),
    Architecture("qwen2", 2, 64, 4, 2, 16, 128, 300, 0, "toy", tied_embeddings=True, qkv_bias=True),
    Architecture("qwen3", 2, 64, 4, 2, 32, 128, 300, 0, "toy", tied_embeddings=True, qk_norm=True),
]


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.name)
def test_a_random_model_has_the_weights_of_its_shape(toy):
    model = random_model(toy, "fp32", 128, Accelerator("cpu"))
    modules = (model.embed, *model.layers, model.norm, model.lm_head)
    weights = {id(weight): weight for module in modules for weight in module.parameters()}
    assert sum(weight.numel() for weight in weights.values()) == toy.parameters()
    assert all(bool(weight.isfinite().all()) for weight in weights.values())


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.name)
def test_a_random_model_drafts(toy):
    engine = published_engine(toy, "fp32", 128, Accelerator("cpu"))
    drafted, loads = engine.execute(DraftWork("a", 0, (1, 2, 3), DraftStopRule(2)))
    assert len(drafted.tokens) == len(loads) == 2


@pytest.mark.skipif(not packed_layers.packs(torch.float32), reason="this CPU multiplies no packed weights")
@pytest.mark.parametrize(("rows", "packed"), [(1, False), (None, True)])
def test_a_random_model_that_drafts_is_packed_as_one_that_serves(monkeypatch, rows, packed):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(packed_layers, "MIN_PACKED", 0)
    engine = published_engine(TOYS[0], "fp32", 128, Accelerator("cpu"), rows)
    assert isinstance(engine.model.lm_head, packed_layers.PackedLinear) == packed


UNKNOWN = ("falcon_40b", "falcon_7b")


@pytest.mark.parametrize("name", sorted(set(names("model/architecture")) - set(UNKNOWN)))
def test_published_shapes_are_known(name):
    shape = architecture(name)
    config = transformers_config(shape, 2048)
    assert (config.num_hidden_layers, config.hidden_size) == (shape.layers, shape.hidden_size)
    assert getattr(config, "head_dim", shape.head_dim) == shape.head_dim


@pytest.mark.parametrize("name", UNKNOWN)
def test_shapes_without_layers_in_the_engine_are_refused(name):
    with pytest.raises(ValueError, match=f"the engine has no layers of the kind of {name}"):
        transformers_config(architecture(name), 2048)


def test_a_model_without_room_is_refused_with_the_arithmetic():
    shape = architecture("llama2_13b")
    weights = shape.weights_nbytes("fp16") / 2**30
    message = (
        rf"llama2_13b does not fit into the 24\.00 GB.*in fp16: weights {weights:.2f} GB \+ KV cache .* = .*smaller"
    )
    with pytest.raises(ValueError, match=message):
        check_memory(shape, "fp16", 2048, 24 * 2**30)
    check_memory(shape, "fp16", 2048, 80 * 2**30)


def test_published_shapes_run_on_a_gpu():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here: models of published shapes were not made on one")
    engine = published_engine(TOYS[0], "fp16", 128, Accelerator("cuda"))
    assert engine.model.device.type == "cuda"
    assert len(engine.execute(DraftWork("a", 0, (1, 2, 3), DraftStopRule(2)))[0].tokens) == 2
