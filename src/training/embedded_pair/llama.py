"""A Llama that trains fast on a CPU: fused projections, bf16 compute over fp32 weights, saved in Hugging Face format.

The same mathematics as `transformers.LlamaForCausalLM` with tied embeddings; a test compares the logits. Inference
uses transformers' own module: this one has no KV cache.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.embedded_pair.model_config import LlamaSizes

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedTokenizerFast


NORM_EPSILON = 1e-6
MAX_POSITIONS = 512


class DecoderLayer(nn.Module):
    """One decoder layer; `qkv` is (3, d, d) and `gate_up` (2, ff, d), so that an optimiser sees whole matrices."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        d, ff = sizes.hidden_size, sizes.intermediate_size
        self.heads = sizes.heads
        self.attention_norm = nn.Parameter(torch.ones(d))
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Parameter(torch.empty(3, d, d))
        self.out = nn.Parameter(torch.empty(d, d))
        self.gate_up = nn.Parameter(torch.empty(2, ff, d))
        self.down = nn.Parameter(torch.empty(d, ff))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(_rms_norm(x, self.attention_norm), cos, sin, mask)
        return x + self.mlp(_rms_norm(x, self.mlp_norm))

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        rows, length, d = x.shape
        fused = F.linear(x, self.qkv.flatten(0, 1).to(x.dtype)).view(rows, length, 3, self.heads, d // self.heads)
        query, key, value = fused.permute(2, 0, 3, 1, 4).unbind(0)
        # Written out: the CPU's fused kernel takes four times as long, nearly all of it in the backward pass.
        scores = _rotate(query * query.shape[-1] ** -0.5, cos, sin) @ _rotate(key, cos, sin).mT + mask
        mixed = scores.softmax(-1) @ value
        return F.linear(mixed.transpose(1, 2).reshape(rows, length, d), self.out.to(x.dtype))

    def mlp(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, self.gate_up.flatten(0, 1).to(x.dtype)).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down.to(x.dtype))


class Llama(nn.Module):
    """Decoder-only transformer; weights are undefined until `initialisation.initialise` or `load` fills them."""

    def __init__(self, sizes: LlamaSizes, vocab_size: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Parameter(torch.empty(vocab_size, sizes.hidden_size))
        self.blocks = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.Parameter(torch.ones(sizes.hidden_size))

    def layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.blocks))

    def hidden_states(self, ids: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Last hidden states (rows, length, d) of ids (rows, length) under a boolean mask (rows, length, length)."""
        cos, sin = (table.to(ids.device, dtype) for table in rope_tables(self.sizes, ids.shape[1]))
        bias = torch.zeros(mask.shape, dtype=dtype, device=ids.device).masked_fill_(~mask, float("-inf"))[:, None]
        x = F.embedding(ids, self.embedding).to(dtype)
        for block in self.layers():
            x = block(x, cos, sin, bias)
        return _rms_norm(x, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in float32: a bf16 softmax loses too much."""
        return F.linear(hidden, self.embedding.to(hidden.dtype)).float()


def rope_tables(sizes: LlamaSizes, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, head_dim / 2) of the rotary embedding."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rope_frequencies(sizes))
    return angles.cos(), angles.sin()


def rope_frequencies(sizes: LlamaSizes) -> Tensor:
    """Radians (head_dim / 2) by which rotary embeddings turn each pair of numbers from one token to the next."""
    steps = torch.arange(0, sizes.head_dim, 2, dtype=torch.float32) / sizes.head_dim
    turns: Tensor = sizes.rope_theta**-steps
    return turns


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), NORM_EPSILON)


# ---- Hugging Face format


def save(model: Llama, tokenizer: "PreTrainedTokenizerFast", out: Path) -> None:
    """Write config.json, model.safetensors (float32) and the tokenizer's files, as `from_pretrained` reads them."""
    from safetensors.torch import save_file
    from transformers import GenerationConfig

    state = {name: tensor.detach().cpu().clone() for name, tensor in _hf_weights(model).items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    special: dict[str, Any] = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")
    }
    _hf_config(model, special).save_pretrained(str(out))
    GenerationConfig(**special).save_pretrained(str(out))
    tokenizer.save_pretrained(str(out))


def load(checkpoint: Path) -> Llama:
    """The training form of a checkpoint that `save` wrote."""
    from safetensors.torch import load_file

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    sizes = LlamaSizes(
        hidden_size=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        intermediate_size=config["intermediate_size"],
        rope_theta=config["rope_parameters"]["rope_theta"],
    )
    model = Llama(sizes, config["vocab_size"])
    state = load_file(checkpoint / "model.safetensors")
    with torch.no_grad():
        for name, tensor in _hf_weights(model).items():
            tensor.copy_(state[name])
    return model


def _hf_config(model: Llama, special: dict[str, Any]) -> "LlamaConfig":
    from transformers import LlamaConfig

    sizes = model.sizes
    return LlamaConfig(
        vocab_size=len(model.embedding),
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        rms_norm_eps=NORM_EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta},
        architectures=["LlamaForCausalLM"],
        dtype="float32",
        **special,
    )


def _hf_weights(model: Llama) -> dict[str, Tensor]:
    """The weights under Hugging Face's names; views, so that writing into them writes into the model."""
    named: dict[str, Tensor] = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    for number, block in enumerate(model.layers()):
        named |= {f"model.layers.{number}.{name}.weight": tensor for name, tensor in _hf_layer_weights(block).items()}
    return named


def _hf_layer_weights(block: DecoderLayer) -> dict[str, Tensor]:
    query, key, value = block.qkv.unbind(0)
    gate, up = block.gate_up.unbind(0)
    return {
        "self_attn.q_proj": query,
        "self_attn.k_proj": key,
        "self_attn.v_proj": value,
        "self_attn.o_proj": block.out,
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": block.down,
        "input_layernorm": block.attention_norm,
        "post_attention_layernorm": block.mlp_norm,
    }
