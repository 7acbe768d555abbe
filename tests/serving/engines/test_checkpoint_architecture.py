"""A checkpoint's architecture from its config.json, for all families that the engine runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from serving.engines.checkpoint_architecture import ARCHITECTURES, checkpoint_architecture, num_parameters
from serving.engines.models import ModelConfig, ModelPair
from serving.hardware.architecture import adapter_draft_architecture
from serving.learned.adapter import Adapter
from tests.support.conf_files import architecture

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 60,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(set(ARCHITECTURES) - {"gpt_neox"}))
@pytest.mark.parametrize("tied", [False, True])
def test_the_parameters_are_those_of_the_model(kind: str, tied: bool, tmp_path: Path) -> None:
    groups = {} if kind == "phi3" else {"num_key_value_heads": 2}
    config = AutoConfig.for_model(kind, **SIZES, **groups, tie_word_embeddings=tied)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    found = checkpoint_architecture(tmp_path)
    assert (found.layers, found.hidden_size, found.heads, found.tied_embeddings) == (3, 32, 4, tied)
    assert found.parameters() == found.published_parameters == num_parameters(tmp_path)


def test_a_model_that_is_timed_as_itself_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama"}))
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "model.safetensors")
    own = ModelConfig(path=tmp_path, timed_architecture=checkpoint_architecture(tmp_path))
    assert own.is_timed_as_itself
    assert own.described.endswith(f"{tmp_path.name} (17 parameters)")
    assert not ModelConfig(path=tmp_path, timed_architecture=architecture("llama_68m")).is_timed_as_itself
    published = replace(own.timed_architecture, name="a published name", source="a model card", published_parameters=9)
    assert ModelConfig(path=tmp_path, timed_architecture=published).is_timed_as_itself
    assert not ModelConfig(path=tmp_path, timed_architecture=replace(published, layers=4)).is_timed_as_itself
    assert ModelConfig(hub="a/b", timed_architecture=architecture("llama_68m")).described == "a/b"


def test_a_pair_that_is_timed_as_an_unlike_pair_is_hypothetical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.engines.tokenizer.check_same_tokenizer", lambda *_: None)  # these have none
    own = []
    for layers in (2, 3):
        folder = tmp_path / str(layers)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama", "num_hidden_layers": layers}))
        own.append(ModelConfig(path=folder, timed_architecture=checkpoint_architecture(folder)))
    assert ModelPair(*own).hypothetical == ""
    unlike = [
        replace(one, timed_architecture=architecture(name))
        for one, name in zip(own, ("llama_68m", "llama2_7b"), strict=True)
    ]
    assert ModelPair(*unlike).hypothetical.startswith("hypothetical: the drafts are those of a model with 0.709 of")
    assert ModelPair(*unlike).hypothetical.endswith("of its target's weights, and timed as of one with 0.0101")
    assert ModelPair(*unlike, embedded=True).hypothetical == ""
    assert ModelPair(own[0], replace(unlike[1], path=None, hub="a/b")).hypothetical == ""  # its shape is not known here


def test_a_draft_model_of_the_targets_first_layers_counts_these_and_its_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAT's device model is given by the cloud's checkpoint, and has a part of its weights."""
    monkeypatch.setattr("serving.engines.tokenizer.check_same_tokenizer", lambda *_: None)  # these have none
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama", "num_hidden_layers": 8}))
    (tmp_path / "adapter").mkdir()
    Adapter(shallow_layers=2, num_parameters=9).save(tmp_path / "adapter")
    cloud = ModelConfig(path=tmp_path, timed_architecture=checkpoint_architecture(tmp_path))
    timed = adapter_draft_architecture(cloud.timed_architecture, 2)
    device = ModelConfig(path=tmp_path, adapter=tmp_path / "adapter", timed_architecture=timed)
    assert device.own_parameters == timed.parameters() < (cloud.own_parameters or 0) / 2
    assert device.is_timed_as_itself
    assert ModelPair(device, cloud).hypothetical == ""
    deeper = replace(device, timed_architecture=adapter_draft_architecture(cloud.timed_architecture, 7))
    assert not deeper.is_timed_as_itself
    assert ModelPair(deeper, cloud).hypothetical.startswith("hypothetical: the drafts are those of a model with 0.345")
    lost = replace(device, adapter=tmp_path / "none")
    assert (lost.own_parameters, lost.is_timed_as_itself) == (None, False)


@pytest.mark.parametrize("text", ['{"model_type": "llama"}', '{"model_type": "llama", "num_attention_heads": "many"}'])
def test_a_configuration_without_a_shape_is_refused_with_what_to_do(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json does not say what to time .*; set timed_architecture of"):
        checkpoint_architecture(tmp_path)


def test_weights_that_a_folder_holds_in_two_forms_count_once(tmp_path: Path) -> None:
    config = AutoConfig.for_model("llama", **SIZES)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    want = num_parameters(tmp_path)
    shutil.copy(tmp_path / "model.safetensors", tmp_path / "consolidated.safetensors")
    assert checkpoint_architecture(tmp_path).published_parameters == num_parameters(tmp_path) == want
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path, max_shard_size=20_000)
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert num_parameters(tmp_path) == want


@pytest.mark.parametrize(
    "content",
    [b"abc", b"version https://git-lfs", (2**63).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]", b""],
)
def test_damaged_weights_are_named_with_what_to_do(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama"}))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or cut .*; fetch the checkpoint again"):
        checkpoint_architecture(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 1}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_named_with_what_to_do(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index\.json is damaged .*; fetch the checkpoint again"):
        num_parameters(tmp_path)
