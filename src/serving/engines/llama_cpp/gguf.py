"""Converts a Llama checkpoint to llama.cpp's format: `python -m serving.engines.llama_cpp.gguf CHECKPOINT FILE.gguf`.

Needs the package `gguf` (the extra `llama_cpp`). Weights stay in 32 bits unless fewer are asked for, so that llama.cpp
writes what `transformers` writes.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

Weights = Literal["f32", "f16", "q8_0"]
_BLOCK_WEIGHTS = 32
"""Weights of a row that share a scale in q8_0; other rows are kept in fp16."""
_LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GLOBAL_TENSORS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def convert(checkpoint: Path, file: Path, weights: Weights = "f32") -> None:
    """Writes `file`, its matrices in the format of `weights`.

    Raises ValueError for anything but a Llama with a byte-level BPE tokenizer.
    """
    from gguf import GGUFWriter
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint)
    rope = getattr(config, "rope_parameters", None) or {}
    if config.model_type != "llama" or rope.get("rope_type", "default") != "default":
        raise ValueError(f"{checkpoint} is a {config.model_type}; only plain Llamas are converted here")
    vocabulary = _vocabulary(checkpoint, int(config.vocab_size))
    writer = GGUFWriter(file, "llama")
    writer.add_name(checkpoint.name)
    _write_hyperparameters(writer, config, float(rope.get("rope_theta", 10000.0)))
    _write_tokenizer(writer, vocabulary, config)
    _write_weights(writer, checkpoint, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_hyperparameters(writer: Any, config: Any, theta: float) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(_head_dim(config))
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    writer.add_rope_freq_base(theta)
    writer.add_vocab_size(config.vocab_size)


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _vocabulary(checkpoint: Path, rows: int) -> dict[str, Any]:
    """tokens, kinds, merges and pre-tokenizer, from tokenizer.json."""
    from gguf import TokenType

    found = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    model, pre_tokenizer = found["model"], _pre_tokenizer(found.get("pre_tokenizer") or {})
    if model["type"] != "BPE" or not pre_tokenizer:
        raise ValueError(f"the tokenizer of {checkpoint} is no byte-level BPE, the only kind that is converted here")
    tokens = {i: token for token, i in model["vocab"].items()}
    kinds = dict.fromkeys(tokens, TokenType.NORMAL)
    for added in found.get("added_tokens", []):
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {
        "tokens": [tokens.get(i, f"[PAD{i}]") for i in range(rows)],
        "kinds": [kinds.get(i, TokenType.UNUSED) for i in range(rows)],
        "merges": merges,
        "pre_tokenizer": pre_tokenizer,
    }


def _pre_tokenizer(pre: dict[str, Any]) -> str:
    """llama.cpp's name of the pre-tokenizer; "" for an unknown one."""
    match pre:
        case {"type": "ByteLevel"}:
            return "gpt-2"
        case {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, last]}:
            return "starcoder" if last["type"] == "ByteLevel" else ""
    return ""


def _write_tokenizer(writer: Any, vocabulary: dict[str, Any], config: Any) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary["pre_tokenizer"])
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["kinds"])
    writer.add_token_merges(vocabulary["merges"])
    writer.add_add_bos_token(False)
    for name in ("bos", "eos", "pad"):
        if (token := getattr(config, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(token)


def _write_weights(writer: Any, checkpoint: Path, weights: Weights) -> None:
    import torch
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    heads, kv_heads = int(model.config.num_attention_heads), int(model.config.num_key_value_heads)
    tied, kind = bool(model.config.tie_word_embeddings), GGMLQuantizationType[weights.upper()]
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        if ".q_proj." in name or ".k_proj." in name:
            tensor = _permute_rotary(tensor, heads if ".q_proj." in name else kv_heads)
        values = tensor.contiguous().numpy()
        if weights == "f32" or values.ndim == 1:
            writer.add_tensor(_gguf_name(name), values)
            continue
        own = kind if values.shape[-1] % _BLOCK_WEIGHTS == 0 else GGMLQuantizationType.F16
        writer.add_tensor(_gguf_name(name), quantize(values, own), raw_dtype=own)


def _gguf_name(name: str) -> str:
    stem, _, end = name.rpartition(".")
    if stem in _GLOBAL_TENSORS:
        return f"{_GLOBAL_TENSORS[stem]}.{end}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER_TENSORS[part]}.{end}"


def _permute_rotary(weight: Any, heads: int) -> Any:
    """Rows in llama.cpp's order, which rotates neighbours where `transformers` rotates halves."""
    rows = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return rows.transpose(1, 2).reshape(weight.shape)


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 2:
        raise SystemExit(
            "give a checkpoint's directory and the file to write: python -m serving.engines.llama_cpp.gguf DIR FILE"
        )
    try:
        convert(Path(arguments[0]), Path(arguments[1]))
    except (ValueError, OSError) as problem:
        raise SystemExit(f"error: {problem}") from problem


if __name__ == "__main__":
    main(sys.argv[1:])
