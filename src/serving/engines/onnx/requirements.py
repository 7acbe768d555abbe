"""What exporting and running graphs needs, and the plain words where it is not there.

Which checkpoints onnxruntime cannot run as torch would.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

LIBRARIES = ("onnx", "onnxscript", "onnxruntime")


def check_libraries() -> None:
    """Raises ValueError where a library is missing; imports none."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"model: backend=onnx needs {' and '.join(missing)}, which this Python does not have; "
            "install tandem-llm[onnx], or set model.device.backend=torch"
        )


class Exportable(Protocol):
    """What of a checkpoint decides it."""

    @property
    def dtype(self) -> str: ...

    @property
    def quantization(self) -> str: ...

    @property
    def adapter(self) -> Path | None: ...


def check_exportable(checkpoint: Exportable) -> None:
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
