"""Tiny models of random weights: each architecture that the engine knows, and checkpoints as they are saved."""

import json
from pathlib import Path
from typing import Any

from tests.support.tiny_tokenizers import byte_level, tokenizer_json

VOCABULARY = 97
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_key_value_heads": 2},
    "llama_yarn": {
        "model_type": "llama",
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2},
    "qwen2_mixed": {
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 2,
    },
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 16},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 8, "head_dim": 8},
    "mistral_open": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None},
    "phi3": {"model_type": "phi3", "num_key_value_heads": 2, "sliding_window": 8},
    "phi3_longrope": {
        "model_type": "phi3",
        "num_key_value_heads": 2,
        "original_max_position_embeddings": 40,
        "rope_parameters": _LONGROPE,
    },
    "neox": {"model_type": "gpt_neox", "use_parallel_residual": True},
    "neox_sequential": {"model_type": "gpt_neox", "use_parallel_residual": False},
}


def build_model(variant: str, seed: int = 0, **overrides: Any) -> Any:
    import torch
    import transformers

    settings = {**_SIZES, **VARIANTS[variant], **overrides}
    config = transformers.AutoConfig.for_model(**settings)
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def save_checkpoint(
    path: Path, words: str = "where is the red key it a box in on", layers: int = 2, seed: int = 0, hidden: int = 16
) -> Path:
    """A Llama of a few thousand weights, with its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(words.split()) + 2, hidden_size=hidden, intermediate_size=32, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512, eos_token_id=1, bos_token_id=None,
        pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(path)
    (path / "tokenizer.json").write_text(tokenizer_json(words))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "<eos>"}
    (path / "tokenizer_config.json").write_text(json.dumps(about))
    return path


def save_checkpoints(root: Path) -> dict[str, Path]:
    """device and cloud: a pair; stranger: a causal LM with other words; encoder: no causal LM."""
    found = {
        "device": save_checkpoint(root / "device"),
        "cloud": save_checkpoint(root / "cloud", layers=8, seed=1),
        "stranger": save_checkpoint(root / "stranger", "where is the blue key it a box in on"),
    }
    encoder = root / "encoder"
    encoder.mkdir()
    (encoder / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"], "model_type": "bert"}))
    return found | {"encoder": encoder}


def save_byte_level(path: Path, layers: int, seed: int) -> Path:
    """A Llama of random weights with a byte-level tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    hf = byte_level()
    config = LlamaConfig(
        vocab_size=len(hf), hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.4, bos_token_id=hf.bos_token_id,
        eos_token_id=hf.eos_token_id, pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(path)
    hf.save_pretrained(path)
    return path
