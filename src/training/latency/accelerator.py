"""The torch device that computes: what it is called, when it is done, and what room it has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Accelerator:
    """`device` is a torch device, cpu or cuda. Raises ValueError for a GPU that is not there."""

    device: str

    def __post_init__(self) -> None:
        import torch

        if self.is_gpu and not torch.cuda.is_available():
            raise ValueError(f"latency profile: accelerator={self.device}, but torch sees no GPU here; use cpu.")

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def facts(self) -> dict[str, str | int | bool]:
        """What a measured time depends on: processor, versions, one thread, and the GPU if it computes."""
        import torch

        from training.fitting.machine import facts

        found = {**facts(), "threads": 1, "device": self.device}
        if self.is_gpu:
            found |= {"gpu": torch.cuda.get_device_name(self.device), "cuda": str(torch.version.cuda)}
        return found

    @property
    def name(self) -> str:
        """The GPU's or the processor's."""
        found = self.facts()
        return str(found.get("gpu", found["processor"]))

    def settle(self) -> None:
        """Waits until all that was asked of a GPU is done: its work is only queued by then."""
        import torch

        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def free_nbytes(self) -> int:
        """Memory that a model may take: the GPU's free, or what the system calls available."""
        import gc

        import torch

        if self.is_gpu:
            gc.collect()
            torch.cuda.empty_cache()  # what torch keeps of an earlier model counts as taken
            return int(torch.cuda.mem_get_info(self.device)[0])
        return _available_nbytes()

    def memory_nbytes(self) -> int:
        import torch

        if self.is_gpu:
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available_nbytes() -> int:
    path = Path("/proc/meminfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return next(found, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
