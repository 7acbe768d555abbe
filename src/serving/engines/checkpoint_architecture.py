"""A checkpoint in a directory: is it a causal LM, its architecture (config.json), its parameters (of its weights)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from serving.hardware.architecture import Architecture

CONFIG_FILE = "config.json"
ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gpt_neox")
"""`model_type` in the config.json of the checkpoints that the torch engine runs; here, because plans load no torch."""


def checkpoint_architecture(path: Path) -> Architecture:
    """The shape of the checkpoint in the directory `path`, to be timed as itself.

    Raises ValueError for what is no causal LM, or a config.json without the shape of a decoder-only transformer.
    """
    check_checkpoint(path, "none")
    file = path / CONFIG_FILE
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        heads, kind = int(config["num_attention_heads"]), str(config.get("model_type"))
        found = Architecture(
            name=path.name,
            layers=int(config["num_hidden_layers"]),
            hidden_size=int(config["hidden_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            intermediate_size=int(config["intermediate_size"]),
            vocab_size=int(config["vocab_size"]),
            published_parameters=0,
            source=str(file),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            gated_mlp=kind != "gpt_neox",
            qkv_bias=kind in ("qwen2", "gpt_neox"),
            qk_norm=kind == "qwen3",
            norm_bias=kind == "gpt_neox",
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ValueError(
            f"{file} does not say what to time this checkpoint as ({problem!r}); set timed_architecture of "
            "model.device or model.cloud to a name of conf/model/architecture"
        ) from problem
    return replace(found, published_parameters=num_parameters(path) or found.parameters())


def max_positions(path: Path) -> int | None:
    """How many positions the checkpoint in `path` was trained for; None if its config.json does not say."""
    try:
        config: dict[str, Any] = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
        return int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def num_parameters(path: Path) -> int | None:
    """The numbers in a checkpoint's safetensors files, each tensor as often as it is stored; None without files.

    Raises ValueError for a file that is damaged.
    """
    counts = [_num_stored(file) for file in _weight_files(path)]
    return sum(counts) if counts else None


def _weight_files(path: Path) -> list[Path]:
    """Those that `transformers` loads, as far as they are there; a folder may hold the same weights once more."""
    whole, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole] if whole.is_file() else sorted(path.glob("*.safetensors"))
    try:
        named = {path / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{index} is damaged ({problem!r}); fetch the checkpoint again") from problem
    return sorted(file for file in named if file.is_file())


def _num_stored(file: Path) -> int:
    try:
        header = json.loads(_header(file))
        return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{file} is damaged or cut ({problem!r}); fetch the checkpoint again") from problem


def _header(file: Path) -> bytes:
    """Raises ValueError where the file does not begin with the length of a header that it holds."""
    with file.open("rb") as data:
        length, held = int.from_bytes(data.read(8), "little"), file.stat().st_size - 8
        if length > held:
            raise ValueError(f"its first 8 bytes name a header of {length} bytes, and {max(0, held)} follow")
        return data.read(length)


def check_checkpoint(path: Path, quantization: str) -> None:
    """Raises ValueError for a directory without a causal LM. Loads nothing."""
    file = path / CONFIG_FILE
    if not file.is_file():
        raise ValueError(f"{path} holds no config.json; give the directory of a Hugging Face checkpoint")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        names, kind = config.get("architectures") or [], config.get("model_type")
        stored = config.get("quantization_config")
    except (ValueError, AttributeError) as problem:
        raise ValueError(f"{file} is damaged ({problem}); fetch or train the checkpoint again") from problem
    check_architecture(path, names, kind)
    if stored and quantization != "none":
        raise ValueError(f"{path} is quantised already; set quantization=none, or give the checkpoint it was made from")


def check_architecture(path: str | Path, names: Sequence[str], kind: str | None) -> None:
    """Raises ValueError for a checkpoint that is no causal LM, or of another architecture than `ARCHITECTURES`.

    Args:
        path: for error messages.
        names: `architectures` of its config.json; may be empty.
        kind: its `model_type`.
    """
    if names and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise ValueError(f"{path} holds {', '.join(names)}, which is not a causal LM; give a ...ForCausalLM checkpoint")
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"{path} is of architecture {kind!r}, which the engine cannot take apart; it knows {known}")
