"""Models of published shapes with random weights; the time of a forward does not depend on the values."""

from typing import TYPE_CHECKING, Any

from serving.engines.models import Dtype
from serving.hardware.architecture import Architecture, Precision
from training.latency.grid import MAX_SESSIONS
from training.latency.timing import Accelerator

if TYPE_CHECKING:
    from serving.engines.torch.engine import TorchEngine
    from serving.engines.torch.model import DecomposedModel

GIB = 2**30
_WEIGHT_STD = 0.02


def published_engine(
    architecture: Architecture,
    dtype: Dtype,
    max_session_tokens: int,
    accelerator: Accelerator,
    rows: int | None = None,
) -> "TorchEngine":
    """An engine with a random model of that shape, in `dtype`, for sessions of `max_session_tokens` tokens, and for
    passes of `rows` rows (None: many).

    Raises ValueError for a shape that the engine cannot run or that does not fit into memory.
    """
    import torch

    from serving.engines.torch.engine import TorchEngine
    from serving.engines.torch.packed_layers import pack_weights

    torch.set_num_threads(1)
    check_memory(architecture, dtype, max_session_tokens, accelerator.free_nbytes())
    model = random_model(architecture, dtype, max_session_tokens, accelerator)
    pack_weights(model, rows)  # as models that serve
    return TorchEngine(model)


def random_model(
    architecture: Architecture, dtype: Dtype, max_session_tokens: int, accelerator: Accelerator
) -> "DecomposedModel":
    """A model of that shape with random weights; raises ValueError for a shape that the engine cannot run."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    from serving.engines.torch.model import DTYPES, decompose

    config = transformers_config(architecture, max_session_tokens)
    from_config = _untyped(AutoModelForCausalLM.from_config)
    with torch.device(accelerator.device), no_init_weights():
        causal = from_config(config, dtype=DTYPES[dtype])
    generator = torch.Generator(accelerator.device).manual_seed(0)
    with torch.no_grad():
        for weights in causal.parameters():
            weights.normal_(0, _WEIGHT_STD, generator=generator) if weights.dim() > 1 else weights.fill_(1)
    causal.tie_weights()
    return decompose(causal, device=accelerator.device, name=architecture.name)


def check_memory(architecture: Architecture, dtype: Dtype, max_session_tokens: int, free_nbytes: int) -> None:
    """Raises ValueError with each term if weights, caches and one forward need more memory than is free."""
    precision: Precision = "fp32" if dtype == "fp32" else "fp16"
    sessions = MAX_SESSIONS + 1  # verifications and a prefill beside them
    weights = architecture.weights_nbytes(precision)
    cache = 2 * sessions * max_session_tokens * architecture.kv_nbytes_per_token(precision)  # caches grow by doubling
    activations = architecture.activation_nbytes(
        sessions * max_session_tokens, precision, head_tokens=sessions * max_session_tokens
    )
    if weights + cache + activations > free_nbytes:
        raise ValueError(
            f"latency profile: {architecture.name} does not fit into the {_gb(free_nbytes)} that are free here, in "
            f"{dtype}: weights {_gb(weights)} + KV cache {_gb(cache)} ({sessions} sessions x {max_session_tokens} "
            f"tokens, twice) + activations {_gb(activations)} = {_gb(weights + cache + activations)}. Use a smaller "
            f"architecture{', dtype=fp16' if dtype == 'fp32' else ''} or a smaller options.max_session_tokens."
        )


def check_layers(architecture: Architecture) -> None:
    """Raises ValueError for a shape that the engine cannot run."""
    if not architecture.gated_mlp or architecture.norms_per_block != 2 or architecture.norm_bias:
        raise ValueError(
            f"latency profile: the engine has no layers of the kind of {architecture.name} (an MLP without a gate, "
            "one norm a block, or norms with biases); it runs the shapes of Llama, Qwen2, Qwen3, Phi-3 and Yi."
        )


def transformers_config(architecture: Architecture, max_session_tokens: int) -> Any:
    """The configuration of the `transformers` model of that shape: Llama, Qwen2 (biases) or Qwen3 (normed keys).

    Phi-3 is Llama's shape with two projections stored as one.
    """
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    check_layers(architecture)
    kind: Any = Qwen3Config if architecture.qk_norm else Qwen2Config if architecture.qkv_bias else LlamaConfig
    return kind(
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        max_position_embeddings=2 * max_session_tokens,
        tie_word_embeddings=architecture.tied_embeddings,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _untyped(function: Any) -> Any:
    """Hides a function from the type checker, because `transformers` types only some of its functions."""
    return function


def _gb(nbytes: float) -> str:
    return f"{nbytes / GIB:.2f} GB"
