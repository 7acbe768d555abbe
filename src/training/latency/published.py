"""Models of published shapes with random weights: what a forward takes does not depend on the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serving.engines.models import Dtype
from serving.hardware.architecture import Architecture, Precision
from training.latency.grid import MOST_SESSIONS
from training.latency.timing import Accelerator

if TYPE_CHECKING:
    from serving.engines.torch.engine import Engine

GB = 2**30
_WEIGHT_SPREAD = 0.02


def published_engine(architecture: Architecture, dtype: Dtype, longest: int, accelerator: Accelerator) -> Engine:
    """An engine with a model of that shape, in `dtype`, for sessions of `longest` tokens.

    Raises ValueError for a shape that the engine has no layers for, or that does not fit into memory.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    from serving.engines.torch.engine import Engine
    from serving.engines.torch.model import DTYPES, take_apart

    torch.set_num_threads(1)
    check_room(architecture, dtype, longest, accelerator.free_nbytes())
    config, from_config = transformers_config(architecture, longest), _untyped(AutoModelForCausalLM.from_config)
    with torch.device(accelerator.device), no_init_weights():
        causal = from_config(config, dtype=DTYPES[dtype])
    generator = torch.Generator(accelerator.device).manual_seed(0)
    with torch.no_grad():
        for weights in causal.parameters():
            weights.normal_(0, _WEIGHT_SPREAD, generator=generator) if weights.dim() > 1 else weights.fill_(1)
    causal.tie_weights()
    return Engine(take_apart(causal, device=accelerator.device, name=architecture.name))


def check_room(architecture: Architecture, dtype: Dtype, longest: int, free_nbytes: int) -> None:
    """Raises ValueError with each term when weights, caches and one forward need more than is free."""
    precision: Precision = "fp32" if dtype == "fp32" else "fp16"
    sessions = MOST_SESSIONS + 1  # verifications and a prefill beside them
    weights = architecture.weights_nbytes(precision)
    cache = 2 * sessions * longest * architecture.kv_nbytes_per_token(precision)  # slots grow by doubling
    activations = architecture.activation_nbytes(sessions * longest, precision, head_rows=sessions * longest)
    if weights + cache + activations > free_nbytes:
        raise ValueError(
            f"latency profile: {architecture.name} does not fit into the {_gb(free_nbytes)} that are free here, in "
            f"{dtype}: weights {_gb(weights)} + KV cache {_gb(cache)} ({sessions} sessions x {longest} tokens, twice) "
            f"+ activations {_gb(activations)} = {_gb(weights + cache + activations)}. Use a smaller architecture"
            f"{', dtype=fp16' if dtype == 'fp32' else ''} or a smaller effort.longest."
        )


def check_layers(architecture: Architecture) -> None:
    """Raises ValueError for a shape that no model of the engine has."""
    if not architecture.gated_mlp or architecture.norms != 2 or architecture.norm_bias:
        raise ValueError(
            f"latency profile: the engine has no layers of the kind of {architecture.name} (an MLP without a gate, "
            "one norm a block, or norms with biases); it runs the shapes of Llama, Qwen2, Qwen3, Phi-3 and Yi."
        )


def transformers_config(architecture: Architecture, longest: int) -> Any:
    """The configuration of the `transformers` model of that shape: Llama, Qwen2 (biases) or Qwen3 (normed keys).

    Phi-3 is Llama's shape with two projections stored as one.
    """
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    check_layers(architecture)
    kind: Any = Qwen3Config if architecture.qk_norm else Qwen2Config if architecture.qkv_bias else LlamaConfig
    return kind(
        vocab_size=architecture.vocabulary,
        hidden_size=architecture.hidden,
        intermediate_size=architecture.intermediate,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        max_position_embeddings=2 * longest,
        tie_word_embeddings=architecture.tied,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _untyped(function: Any) -> Any:
    """`transformers` types only some of its functions."""
    return function


def _gb(nbytes: float) -> str:
    return f"{nbytes / GB:.2f} GB"
