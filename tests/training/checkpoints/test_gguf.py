"""A GGUF file of a package: what is missing is said with the command that installs it."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from training.checkpoints.gguf import LIBRARIES, PackagedGGUF, convert_file, read_special_tokens

FACTS: dict[str, Any] = {"sha256": "0" * 64, "install": "make it", "license": "MIT", "origin": "here"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("packed_model", *LIBRARIES):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "packed_model" / "model.gguf").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "packed_model"


def test_a_missing_package_is_named_with_the_command() -> None:
    with pytest.raises(ValueError, match=r"missing: no_such_package.* Run: make it"):
        PackagedGGUF(package="no_such_package", file="model.gguf", **FACTS)


def test_a_missing_file_is_named(package: str) -> None:
    with pytest.raises(ValueError, match=r"package packed_model has no file other.gguf. Run: make it"):
        PackagedGGUF(package=package, file="other.gguf", **FACTS)


def test_another_file_than_the_digest_names_is_refused(package: str) -> None:
    found = PackagedGGUF(package=package, file="model.gguf", **FACTS)
    with pytest.raises(ValueError, match=r"has the sha256 [0-9a-f]{64}, wanted is 0{64}.* Run again: make it"):
        found.check_content()


def test_the_end_token_is_the_files_where_the_library_reads_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    words = Tokenizer(WordLevel({"<none>": 0, "<begin>": 1, "<end>": 2, "word": 3}, unk_token="<none>"))
    misread = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<begin>", eos_token="<begin>")
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4, **shape))
    named = {"bos_token": 1, "eos_token": 2, "pad_token": 2}
    monkeypatch.setattr("training.checkpoints.gguf.read_special_tokens", lambda _: named)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: model)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: misread)

    convert_file(tmp_path / "model.gguf", tmp_path / "out")

    monkeypatch.undo()
    written = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (written.bos_token, written.eos_token, written.pad_token) == ("<begin>", "<end>", "<end>")


def test_the_special_tokens_that_a_file_names_are_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install -e '.[smollm2]'")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_special_tokens(tmp_path / "model.gguf") == {"bos_token": 1, "eos_token": 2}
