"""Which checkpoints onnxruntime cannot run as torch would."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Exportable(Protocol):
    """What of a checkpoint decides it."""

    @property
    def dtype(self) -> str: ...

    @property
    def quantization(self) -> str: ...

    @property
    def adapter(self) -> Path | None: ...


def check(checkpoint: Exportable) -> None:
    """Raises ValueError for a checkpoint whose graph would compute something else than torch does."""
    if checkpoint.dtype != "fp32":
        raise ValueError(
            f"model: backend=onnx computes in fp32, and dtype is {checkpoint.dtype}; set model.device.dtype=fp32 "
            "(model.stages.device_graph.int8=true stores a quarter of it), or model.device.backend=torch"
        )
    if checkpoint.quantization != "none":
        raise ValueError(
            f"model: backend=onnx cannot export quantization={checkpoint.quantization}, whose kernels are torch's; set "
            "model.device.quantization=none and, for bytes, model.stages.device_graph.int8=true; or "
            "model.device.backend=torch"
        )
    if checkpoint.adapter is not None:
        raise ValueError(
            "model: backend=onnx exports a whole causal LM, and this device drafts with an adapter behind the large "
            "model's first layers (policy/draft=adapter); set model.device.backend=torch, or choose another draft"
        )
