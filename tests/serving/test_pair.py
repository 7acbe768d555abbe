"""What is no pair of causal LMs is refused from its files alone."""

import json
from pathlib import Path

import pytest
from catalogue import architecture
from checkpoints import tokenizer_json

from serving.pair import Model, Pair

TIMING = architecture("tinyllama_1_1b")
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def folder(path: Path, config: object = None, tokenizer: str | None = None) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA if config is None else config))
    (path / "tokenizer.json").write_text(tokenizer or tokenizer_json("a b c"))
    return path


def test_a_model_is_somewhere() -> None:
    with pytest.raises(
        ValueError, match=r"neither path nor hub says where .* set model.device.path and model.cloud.path"
    ):
        Model(timing=TIMING)


def test_a_checkpoint_is_at_one_place(tmp_path: Path) -> None:
    here = folder(tmp_path / "a")
    with pytest.raises(ValueError, match="set path=null to take the Hub's"):
        Model(timing=TIMING, path=here, hub="some/model")
    assert Model(timing=TIMING, path=here).where == str(here)
    assert Model(timing=TIMING, hub="some/model").where == "some/model"


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no config.json; give the directory of a Hugging Face checkpoint"):
        Model(timing=TIMING, path=tmp_path)


@pytest.mark.parametrize("names", [["BertForMaskedLM"], ["T5ForConditionalGeneration"], ["ViTModel"]])
def test_what_is_no_causal_lm_is_refused(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(ValueError, match=f"holds {names[0]}, which is not a causal LM"):
        Model(timing=TIMING, path=folder(tmp_path / "a", {"architectures": names}))


def test_a_damaged_config_is_refused(tmp_path: Path) -> None:
    here = folder(tmp_path / "a")
    for text in ('{"architectures": [', "[]"):
        (here / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config.json is damaged \(.*\); fetch or train the checkpoint again"):
            Model(timing=TIMING, path=here)


def test_two_tokenizers_are_no_pair(tmp_path: Path) -> None:
    one = Model(timing=TIMING, path=folder(tmp_path / "a", tokenizer=tokenizer_json("a b c")))
    other = Model(timing=TIMING, path=folder(tmp_path / "b", tokenizer=tokenizer_json("a b d")))
    with pytest.raises(ValueError, match=r"tokenizers of .* differ: token \d is 'c' in the one and 'd' in the other"):
        Pair(one, other)


def test_one_tokenizer_makes_a_pair(tmp_path: Path) -> None:
    a, b = (Model(timing=TIMING, path=folder(tmp_path / name)) for name in "ab")
    assert Pair(a, b).device.where != Pair(a, b).cloud.where
