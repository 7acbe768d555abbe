"""What this machine is, as far as a measured time depends on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from training.fitting.trainer import has_fast_bf16


def facts() -> dict[str, str | int | bool]:
    """Processor, cores that this process may use, fast bf16 or not, and the versions that matter."""
    import torch

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "avx512_bf16": has_fast_bf16(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
