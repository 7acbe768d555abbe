"""Loads a Hugging Face causal LM and decomposes it into embedding, rotary tables, layers, norm and LM head."""

import ctypes
import importlib
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, get_args

import torch
from torch import nn

from serving.engines.checkpoint_architecture import check_architecture
from serving.engines.torch.attention import ATTENTION_NAME, AttentionKernel, attend_together, register_attention
from serving.engines.torch.batch_invariance import attend_alone, use_blocks
from serving.hardware.architecture import Quantization
from serving.messages import Span

_MIN_POSITIONS = 256


class RotaryEmbedding:
    """Cosines and sines per position, of shape (1, positions, rotated size), in the model's dtype.

    A model with `longrope` scaling (Phi-3) has two tables: one for sequences within its original length, one for longer
    ones. The table depends on the length that the whole sequence has reached.

    Raises ValueError for dynamic scaling, whose table depends on the longest sequence seen so far.
    """

    def __init__(self, module: Any, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        scaling = config.rope_parameters
        if "dynamic" in scaling["rope_type"]:
            raise ValueError(
                f"rope type {scaling['rope_type']!r} changes past positions as a sequence grows, which a KV cache "
                "cannot follow; use a checkpoint with default, linear, yarn, llama3 or longrope scaling"
            )
        self._module, self._dtype, self._device = module, dtype, device
        long = scaling["rope_type"] == "longrope"
        self.original_max_positions = int(scaling["original_max_position_embeddings"]) if long else None
        """The longest sequence of the short table; None: one table for all lengths."""
        self._tables: dict[bool, tuple[torch.Tensor, torch.Tensor]] = {}

    def is_long(self, length: int) -> bool:
        """True if a sequence of this many tokens uses the long table."""
        return self.original_max_positions is not None and length > self.original_max_positions

    def for_range(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) of positions first..last-1 of one sequence of length `last`, without a copy."""
        cos, sin = self._table(last, self.is_long(last))
        return cos[:, first:last], sin[:, first:last]

    def for_positions(self, positions: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) of any positions below `length`, of sequences that use the same table."""
        cos, sin = self._table(length, self.is_long(length))
        index = torch.tensor(positions, device=self._device)
        return cos.index_select(1, index), sin.index_select(1, index)

    def frequencies(self, long: bool = False) -> tuple[torch.Tensor, float]:
        """Radians per position, of shape (rotated size / 2), and the factor of cosines and sines.

        `long`: for sequences beyond the original length.
        """
        at = torch.full((1, 1), (self.original_max_positions or 0) if long else 0, device=self._device)
        self._module(torch.empty(0, device=self._device), position_ids=at)  # makes the module choose its frequencies
        return self._module.inv_freq.detach().float().clone(), float(self._module.attention_scaling)

    def _table(self, length: int, long: bool) -> tuple[torch.Tensor, torch.Tensor]:
        table = self._tables.get(long)
        if table is None or table[0].shape[1] < length:
            table = self._tables[long] = self._compute(length, long)
        return table

    def _compute(self, length: int, long: bool) -> tuple[torch.Tensor, torch.Tensor]:
        positions = max(_MIN_POSITIONS, 2 * length)
        if self.original_max_positions is not None:
            positions = max(positions, self.original_max_positions + 1) if long else self.original_max_positions
        like = torch.empty(0, dtype=self._dtype, device=self._device)
        cos, sin = self._module(like, position_ids=torch.arange(positions, device=self._device)[None])
        return cos, sin


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class DecomposedModel:
    """The parts of a causal LM; the weights stay in the `transformers` modules."""

    name: str
    embed: nn.Module
    layers: tuple[nn.Module, ...]
    norm: nn.Module
    lm_head: nn.Module
    rotary: RotaryEmbedding
    sliding_windows: tuple[int | None, ...]
    """Per layer: how many tokens a query sees, its own included; None: all."""
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    """Rows of the head, padding included."""
    dtype: torch.dtype
    device: torch.device
    attention_kernel: AttentionKernel

    def restricted_to(self, span: Span) -> "DecomposedModel":
        """A copy that holds only the parts of `span`; running another part raises RuntimeError."""
        gone = MissingLayer(self.name)
        layers = tuple(layer if span.start_layer <= i < span.end_layer else gone for i, layer in enumerate(self.layers))
        kept = replace(self, layers=layers) if span.embedding else replace(self, layers=layers, embed=gone)
        return kept if span.lm_head else replace(kept, lm_head=gone, norm=gone)


class MissingLayer(nn.Module):
    """Stands for a part of the model that another process holds. Raises RuntimeError when run."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._model_name = name

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"this part of {self._model_name} is not held here; its placement has it run elsewhere")


def load_model(
    path: str | Path,
    *,
    dtype: str = "fp32",
    device: str = "cpu",
    quantization: str = "none",
    num_layers: int | None = None,
    batch_invariant: bool = False,
) -> DecomposedModel:
    """Loads a causal LM from a directory or Hub name, with only its first `num_layers` layers if that is given.

    With `batch_invariant`, what it computes for a token does not depend on the other tokens of a pass.

    Raises ValueError if there is no such checkpoint, if it is not a causal LM, is damaged, has fewer layers, or has an
    architecture that the engine cannot split into layers.
    """
    causal = load_causal_lm(path, dtype=dtype, device=device, quantization=quantization, num_layers=num_layers)
    return decompose(causal, device=device, name=str(path), batch_invariant=batch_invariant)


def load_causal_lm(
    path: str | Path,
    *,
    dtype: str = "fp32",
    device: str = "cpu",
    quantization: str = "none",
    num_layers: int | None = None,
) -> Any:
    """The `transformers` model itself; arguments and errors as in `load_model`."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}")
    _check_device(device)
    check_loadable(path)
    return_freed_memory()  # that of an earlier stage's models
    chosen = quantization_kwargs(quantization, DTYPES[dtype], device) | _truncated_config(path, num_layers)
    try:
        with _quiet_loading(partial=num_layers is not None):
            pretrained: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=DTYPES[dtype], output_loading_info=True, **chosen
            )
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f"the checkpoint at {path} cannot be read ({error}); fetch or train it again") from error
    loaded, found = pretrained
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"the checkpoint at {path} lacks weights ({len(missing)}, such as {missing[0]}); fetch it again"
        )
    disable_unsupported_kernels(loaded)
    return loaded


def _check_device(device: str) -> None:
    """Raises ValueError for a name that torch does not know, and for a GPU where there is none."""
    try:
        kind = torch.device(device).type
    except RuntimeError as problem:
        raise ValueError(f"device {device!r} is not one of torch's; use 'cpu' or 'cuda'") from problem
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but torch sees no GPU here; use 'cpu'")


def return_freed_memory() -> None:
    """Gives freed memory back to the system, where the C library has `malloc_trim`.

    `transformers` reads weights in threads; glibc keeps what is freed of theirs for those threads alone, and a model
    would be held twice, as it was read and packed.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None


def _truncated_config(path: str | Path, num_layers: int | None) -> dict[str, Any]:
    """`from_pretrained` arguments for a model of `num_layers` layers.

    Raises ValueError unless the checkpoint has as many.
    """
    if num_layers is None:
        return {}
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path)
    if not 1 <= num_layers <= config.num_hidden_layers:
        raise ValueError(f"{path} has {config.num_hidden_layers} layers; num_layers is {num_layers}, give 1 to as many")
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    return {"config": config}


@contextmanager
def _quiet_loading(partial: bool) -> Iterator[None]:
    """Hides the progress bar, and for a `partial` model the list of weights that are not loaded."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    if partial:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def check_loadable(path: str | Path) -> None:
    """Reads only the configuration. Raises ValueError if `load_model` could not use the checkpoint."""
    from transformers import AutoConfig

    if not Path(path).is_dir() and _looks_local(str(path)):
        raise ValueError(f"there is no checkpoint at {path}; give a directory that holds config.json and weights")
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a checkpoint that transformers can open: {error}") from error
    check_architecture(path, config.architectures or (), config.model_type)


def _looks_local(path: str) -> bool:
    return path.count("/") != 1 or path.startswith((".", "/", "~"))


def decompose(
    causal: Any, *, device: str = "cpu", name: str = "model", batch_invariant: bool = False
) -> DecomposedModel:
    """Finds the parts of a loaded `transformers` causal LM and sets the engine's attention.

    The model's own `forward` does not work afterwards: this attention needs the `packed` batch of `ModelRunner`.
    Raises ValueError for an architecture that is not in `checkpoint_architecture.ARCHITECTURES`.
    """
    config = causal.config
    check_architecture(name, config.architectures or (), config.model_type)
    register_attention()
    causal.set_attn_implementation(ATTENTION_NAME)
    if batch_invariant:
        use_blocks(causal)
    causal.eval().requires_grad_(False).to(device)
    base = causal.base_model
    heads = config.num_attention_heads
    return DecomposedModel(
        name=name,
        embed=causal.get_input_embeddings(),
        layers=tuple(base.layers),
        norm=base.final_layer_norm if config.model_type == "gpt_neox" else base.norm,
        lm_head=causal.get_output_embeddings(),
        rotary=RotaryEmbedding(base.rotary_emb, config, causal.dtype, torch.device(device)),
        sliding_windows=_sliding_windows(config),
        hidden_size=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=causal.get_output_embeddings().out_features,
        dtype=causal.dtype,
        device=torch.device(device),
        attention_kernel=attend_alone if batch_invariant else attend_together,
    )


def _sliding_windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def quantization_kwargs(quantization: str, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a quantised model; empty for "none".

    The blocks' linear layers are quantised while they are loaded; embedding, norms and LM head keep their dtype.

    - "nf4": normal floats of 4 bits in blocks of 64 weights; products are computed in `dtype` (QLoRA: Efficient
      Finetuning of Quantized LLMs, section 3). On a CPU with AVX512-BF16, bitsandbytes computes them in bf16.
    - "int8": weights and their inputs become bytes, each input row with its own scale (LLM.int8(): 8-bit
      Matrix Multiplication for Transformers at Scale, section 3.1). Its second part, section 3.2, is off: which columns
      stay in fp16 would depend on all rows of a batch, and so would a session's text on the other sessions.

    Raises ValueError for another name.
    """
    if quantization not in get_args(Quantization):
        known = ", ".join(get_args(Quantization))
        raise ValueError(f"quantization {quantization!r} is not known; choose one of {known}")
    if quantization == "none":
        return {}
    from transformers import BitsAndBytesConfig

    _import_quietly()
    if quantization == "int8":
        config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    else:
        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    return {"quantization_config": config, "device_map": {"": device}}


def disable_unsupported_kernels(causal: Any) -> None:
    """Disables bitsandbytes' AVX512-BF16 kernel for layers whose sizes it does not support.

    The kernel needs multiples of 64 inputs and 32 outputs. Other layers are dequantised, then multiplied.
    """
    for module in causal.modules():
        if getattr(module, "support_avx512bf16_for_cpu", False):
            module.support_avx512bf16_for_cpu = not (module.in_features % 64 or module.out_features % 32)


def _import_quietly() -> None:
    """Imports bitsandbytes without its log line per int8 product and its dependencies' deprecation warnings."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("bitsandbytes")
