"""Tokens to text, end tokens, and which pairs of tokenizers are refused."""

import json
import shutil

import pytest
import transformers
from huggingface_hub import constants
from tokenizers import Tokenizer as Raw
from tokenizers import models, pre_tokenizers

from serving.engines import tokenizer as tokenizer_module
from serving.engines.tokenizer import Tokenizer, check_same_tokenizer

WORDS = ["<pad>", "</s>", "<u>", "<a>", "the", "red", "ball", "is", "in", "a", "box", "?"]
CHAT = "{% for m in messages %}<u> {{ m['content'] }}{% endfor %}{% if add_generation_prompt %} <a>{% endif %}"


def _save(path, words, split=None, chat=CHAT):
    raw = Raw(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    raw.pre_tokenizer = split or pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="</s>")
    tokenizer.chat_template = chat
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def path(tmp_path):
    return _save(tmp_path / "one", WORDS)


def test_tokens_become_text_without_special_ones(path):
    tokenizer = Tokenizer(path)
    assert tokenizer.decode((2, 4, 5, 6, 1)) == "<u> the red ball"
    assert len(tokenizer) == len(WORDS)


def test_end_tokens_come_from_the_tokenizer_and_the_generation_config(path):
    assert Tokenizer(path).eos_token_ids == (1,)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 3]}))
    assert Tokenizer(path).eos_token_ids == (1, 3)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert Tokenizer(path).eos_token_ids == (1, 3)


@pytest.fixture
def hub_copy(tmp_path, monkeypatch):
    """The folder of some/model in the Hub's cache of this machine, which reaches no Hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "hub" / "models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    copy = _save(folder / "snapshots" / "c0ffee", WORDS)
    (copy / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return copy


def test_end_tokens_of_a_model_of_the_hub_are_those_of_a_copy(hub_copy):
    assert Tokenizer("some/model").eos_token_ids == (1,)
    (hub_copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 3, 4]}))
    assert Tokenizer("some/model").eos_token_ids == Tokenizer(hub_copy).eos_token_ids == (1, 3, 4)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer that transformers can open"):
        Tokenizer(tmp_path)


def test_code_beside_a_tokenizer_is_not_offered_to_be_run(path, monkeypatch):
    config = json.loads((path / "tokenizer_config.json").read_text())
    own = {"tokenizer_class": "Foreign", "auto_map": {"AutoTokenizer": [None, "foreign.Foreign"]}}
    (path / "tokenizer_config.json").write_text(json.dumps(config | own))
    (path / "foreign.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match="no tokenizer that transformers can open at"):
        Tokenizer(path)


def test_copies_and_other_chat_templates_are_the_same_tokenizer(path, tmp_path):
    shutil.copytree(path, tmp_path / "two")
    check_same_tokenizer(path, tmp_path / "two")
    check_same_tokenizer(path, _save(tmp_path / "three", WORDS, chat=None))


def test_the_first_token_that_differs_is_named(path, tmp_path):
    swapped = [*WORDS[:5], "ball", "red", *WORDS[7:]]
    with pytest.raises(ValueError, match=r"token 5 is 'red' in the one and 'ball' in the other \(12 and 12 tokens\)"):
        check_same_tokenizer(path, _save(tmp_path / "two", swapped))


def test_tokenizers_of_different_sizes_differ(path, tmp_path):
    with pytest.raises(ValueError, match="token 12 is missing in the one and 'lid' in the other"):
        check_same_tokenizer(path, _save(tmp_path / "two", [*WORDS, "lid"]))


def test_tokenizers_that_split_text_differently_differ(path, tmp_path):
    with pytest.raises(ValueError, match="same vocabulary but split text differently"):
        check_same_tokenizer(path, _save(tmp_path / "two", WORDS, split=pre_tokenizers.Split("c", "isolated")))


def test_a_damaged_tokenizer_file_is_named(path, tmp_path):
    shutil.copytree(path, tmp_path / "two")
    (tmp_path / "two" / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer.json is damaged"):
        check_same_tokenizer(path, tmp_path / "two")


def test_a_model_of_a_hub_that_cannot_be_reached_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(address: tuple[str, int], timeout: float) -> None:
        raise OSError("no route")

    monkeypatch.setattr(tokenizer_module.socket, "create_connection", unreachable)
    monkeypatch.setattr(tokenizer_module, "getproxies", dict)
    with pytest.raises(ValueError, match=r"some/model is not on this machine.*cannot be reached.*no route.*model=tiny"):
        Tokenizer("some/model")
