"""Tiny checkpoints with random weights, as `transformers` saves them: for tests of what people bring themselves."""

import json
from pathlib import Path


def tokenizer_json(words: str) -> str:
    """The text of a tokenizer that knows these words and nothing else."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["<unk>", "<eos>", *words.split()]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())


def save(
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


def made(root: Path) -> dict[str, Path]:
    """device and cloud: a pair; stranger: a causal LM with other words; encoder: no causal LM."""
    found = {
        "device": save(root / "device"),
        "cloud": save(root / "cloud", layers=8, seed=1),
        "stranger": save(root / "stranger", "where is the blue key it a box in on"),
    }
    encoder = root / "encoder"
    encoder.mkdir()
    (encoder / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"], "model_type": "bert"}))
    return found | {"encoder": encoder}
