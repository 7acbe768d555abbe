"""What is no pair of causal LMs is refused from its files alone."""

import json
from collections.abc import Iterator
from dataclasses import fields
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.engines import models
from serving.engines.models import Checkpoint, ModelConfig, ModelPair
from serving.engines.remote.server import RemoteServer
from tests.support.conf_files import CONF, architecture
from tests.support.tiny_tokenizers import tokenizer_json

TIMING = architecture("tinyllama_1_1b")
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def folder(path: Path, config: object = None, tokenizer: str | None = None) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA if config is None else config))
    (path / "tokenizer.json").write_text(tokenizer or tokenizer_json("a b c"))
    return path


def test_a_model_without_path_and_hub_name_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"neither path nor hub says where .* set model.device.path and model.cloud.path"
    ):
        ModelConfig(timed_architecture=TIMING)


def test_a_checkpoint_has_a_path_or_a_hub_name_but_not_both(tmp_path: Path) -> None:
    here = folder(tmp_path / "a")
    with pytest.raises(ValueError, match="set path=null to take the Hub's"):
        ModelConfig(timed_architecture=TIMING, path=here, hub="some/model")
    assert ModelConfig(timed_architecture=TIMING, path=here).name_or_path == str(here)
    assert ModelConfig(timed_architecture=TIMING, hub="some/model").name_or_path == "some/model"


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no config.json; give the directory of a Hugging Face checkpoint"):
        ModelConfig(timed_architecture=TIMING, path=tmp_path)


@pytest.mark.parametrize("names", [["BertForMaskedLM"], ["T5ForConditionalGeneration"], ["ViTModel"]])
def test_a_model_that_is_no_causal_lm_is_refused(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(ValueError, match=f"holds {names[0]}, which is not a causal LM"):
        ModelConfig(timed_architecture=TIMING, path=folder(tmp_path / "a", {"architectures": names}))


def test_a_damaged_config_is_refused(tmp_path: Path) -> None:
    here = folder(tmp_path / "a")
    for text in ('{"architectures": [', "[]"):
        (here / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config.json is damaged \(.*\); fetch or train the checkpoint again"):
            ModelConfig(timed_architecture=TIMING, path=here)


def test_models_with_different_tokenizers_are_no_pair(tmp_path: Path) -> None:
    one = ModelConfig(timed_architecture=TIMING, path=folder(tmp_path / "a", tokenizer=tokenizer_json("a b c")))
    other = ModelConfig(timed_architecture=TIMING, path=folder(tmp_path / "b", tokenizer=tokenizer_json("a b d")))
    with pytest.raises(ValueError, match=r"tokenizers of .* differ: token \d is 'c' in the one and 'd' in the other"):
        ModelPair(one, other)


HEADS = {**LLAMA, "num_attention_heads": 12, "num_key_value_heads": 4}


@pytest.mark.parametrize("ways", [2, 4])
def test_a_sharded_model_notes_the_number_of_processes(tmp_path: Path, ways: int) -> None:
    assert (
        ModelConfig(timed_architecture=TIMING, path=folder(tmp_path / "a", HEADS), tensor_parallel=ways).tensor_parallel
        == ways
    )
    note = ModelConfig(timed_architecture=TIMING, hub="some/model", tensor_parallel=ways).tensor_parallel_note
    assert f"shared by {ways} processes here, which says nothing of the hardware" in str(note)
    assert ModelConfig(timed_architecture=TIMING, hub="some/model").tensor_parallel_note is None


@pytest.mark.parametrize(("ways", "what"), [(5, "12 heads"), (3, "4 KV heads"), (6, "4 KV heads"), (8, "12 heads")])
def test_heads_that_cannot_be_shared_out_are_refused(tmp_path: Path, ways: int, what: str) -> None:
    with pytest.raises(
        ValueError, match=rf"model.cloud.tensor_parallel is {ways}, and .* has {what}, .* a divisor of that: 1, 2"
    ):
        ModelConfig(timed_architecture=TIMING, path=folder(tmp_path / "a", HEADS), tensor_parallel=ways)


@pytest.mark.usefixtures("library")
def test_models_that_cannot_be_sharded_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model.cloud.tensor_parallel is 0; it is a number of processes, 1 or more"):
        ModelConfig(timed_architecture=TIMING, hub="some/model", tensor_parallel=0)
    with pytest.raises(
        ValueError, match=r"parts no weights in nf4; set model.cloud.tensor_parallel=1, or quantization=none"
    ):
        ModelConfig(timed_architecture=TIMING, hub="some/model", tensor_parallel=2, quantization="nf4")
    with pytest.raises(
        ValueError, match=r"server runs the model elsewhere; set model.cloud.tensor_parallel=1, or server=null"
    ):
        ModelConfig(
            timed_architecture=TIMING,
            tensor_parallel=2,
            server=RemoteServer(base_url="http://127.0.0.1:1/v1", model="m"),
        )
    here = ModelConfig(timed_architecture=TIMING, hub="some/model", tensor_parallel=2)
    with pytest.raises(ValueError, match=r"a device's model runs in one process; set model.device.tensor_parallel=1"):
        ModelPair(here, here)


def test_models_with_one_tokenizer_are_a_pair(tmp_path: Path) -> None:
    a, b = (ModelConfig(timed_architecture=TIMING, path=folder(tmp_path / name)) for name in "ab")
    assert ModelPair(a, b).device.name_or_path != ModelPair(a, b).cloud.name_or_path


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the library that quantises were installed."""
    monkeypatch.setattr(models, "find_spec", lambda name: ModuleSpec(name, None))


def test_a_quantisation_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda _: None)
    assert ModelConfig(timed_architecture=TIMING, hub="some/model").quantization_note is None
    with pytest.raises(
        ValueError, match=r"nf4 needs bitsandbytes and accelerate, .* install tandem-llm\[quantization\]"
    ):
        ModelConfig(timed_architecture=TIMING, hub="some/model", quantization="nf4")


@pytest.mark.usefixtures("library")
def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    here = folder(tmp_path / "a", {**LLAMA, "quantization_config": {"quant_method": "awq"}})
    assert ModelConfig(timed_architecture=TIMING, path=here).timed_architecture == TIMING
    with pytest.raises(ValueError, match="is quantised already; set quantization=none"):
        ModelConfig(timed_architecture=TIMING, path=here, quantization="int8")


@pytest.mark.usefixtures("library")
def test_a_quantised_model_is_timed_as_a_quantised_architecture() -> None:
    model = ModelConfig(timed_architecture=TIMING, hub="some/model", quantization="nf4")
    assert (model.timed_architecture.name, model.timed_architecture.quantization) == ("tinyllama_1_1b_nf4", "nf4")
    assert "stored and read in 4.5 bits a weight" in str(model.quantization_note)
    again = ModelConfig(timed_architecture=model.timed_architecture, hub="some/model", quantization="nf4")
    assert again == model


def test_configurations_that_copy_a_checkpoint_copy_all_its_fields() -> None:
    names = {field.name for field in fields(Checkpoint)}
    files = [file for file in sorted(CONF.rglob("*.yaml")) if file.parent != CONF / "model"]  # which define them
    found = {str(file.relative_to(CONF)): node for file in files for node in checkpoints(file)}
    assert {"policy/artifacts/thresholds.yaml", "runtime/outcomes/trace.yaml"} <= set(found)
    for file, node in found.items():
        assert set(node) >= names, f"{file} leaves out {names - set(node)}"


def checkpoints(file: Path) -> Iterator[dict[str, Any]]:
    """The nodes of a YAML file that say where a checkpoint is."""
    waiting = [yaml.safe_load(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if {"path", "hub", "dtype"} <= set(node):
                yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def test_the_display_name_of_a_checkpoint_has_no_full_path(tmp_path: Path) -> None:
    (tmp_path / "device_model").mkdir()
    made = folder(tmp_path / "device_model" / "0a1b")
    assert Checkpoint(path=made).display_name == "device_model/0a1b"
    assert Checkpoint(hub="org/name").display_name == "org/name"
