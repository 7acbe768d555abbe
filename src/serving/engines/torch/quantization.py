"""Weights in 8 or 4 bits: what `transformers` and bitsandbytes are told."""

import importlib
import logging
import warnings
from typing import Any, get_args

import torch

from serving.hardware.architecture import Quantization


def quantization_kwargs(quantization: str, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """What `from_pretrained` is given for a quantised model, beside its dtype; nothing for "none".

    The linear layers of the blocks are quantised while they are loaded; embedding, norms and LM head keep their dtype.

    - "nf4": normal floats of 4 bits in blocks of 64 weights; products are computed in `dtype` (QLoRA: Efficient
      Finetuning of Quantized LLMs, section 3). On a CPU with AVX512-BF16, bitsandbytes computes them in bf16.
    - "int8": weights and the rows that meet them become bytes, each row with a scale of its own (LLM.int8(): 8-bit
      Matrix Multiplication for Transformers at Scale, section 3.1). Its second part, section 3.2, is off: which columns
      stay in fp16 would depend on all rows of a batch, and so a session's text on who else is served.

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
        config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)  # type: ignore[no-untyped-call]
    else:
        config = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
    return {"quantization_config": config, "device_map": {"": device}}


def disable_unsupported_kernels(causal: Any) -> None:
    """Keeps layers from the kernel of bitsandbytes for CPUs with AVX512-BF16 that are not of its sizes: it would fail.

    It wants whole blocks of 64 inputs and 32 outputs; others are turned into numbers first, and multiplied as usual.
    """
    for module in causal.modules():
        if getattr(module, "support_avx512bf16_for_cpu", False):
            module.support_avx512bf16_for_cpu = not (module.in_features % 64 or module.out_features % 32)


def _import_quietly() -> None:
    """bitsandbytes logs a line for every int8 product, and what it loads beside itself warns of torch's own age."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("bitsandbytes")
