"""Tiny random models of every architecture that the engine knows."""

from typing import Any

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


def build(variant: str, seed: int = 0, **overrides: Any) -> Any:
    import torch
    import transformers

    settings = {**_SIZES, **VARIANTS[variant], **overrides}
    config = transformers.AutoConfig.for_model(**settings)
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()
