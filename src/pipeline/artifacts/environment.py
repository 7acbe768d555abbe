"""The environment of a result: code revision, versions, machine."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from native.machine import usable_cores

DISTRIBUTION = "tandem-llm"
PACKAGES = ("torch", "transformers", "lightning", "mlflow", "hydra-core", "numpy", "pyarrow")
CPUINFO = Path("/proc/cpuinfo")


def versions() -> dict[str, str]:
    """Versions of Python, of this project, and of the packages that compute; which build of the core is in use."""
    import platform
    from importlib import metadata

    from native import loader

    found = {"python": platform.python_version()}
    for package in (DISTRIBUTION, *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found | {"core": loader.describe()}


def machine(accelerator: str = "cpu") -> Mapping[str, str | int | float]:
    """Processor, cores that this process may use, memory in GiB; the GPU where `accelerator` is one that is there."""
    import platform

    memory_nbytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_gib": round(memory_nbytes / 2**30, 1),
        "system": platform.platform(terse=True),
        **_gpu(accelerator),
    }


def _gpu(accelerator: str) -> dict[str, str]:
    if not accelerator.startswith("cuda"):
        return {}
    import torch

    return {"gpu": torch.cuda.get_device_name(accelerator)} if torch.cuda.is_available() else {}


def _processor() -> str:
    lines = read_text(CPUINFO).splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, None) or _unnamed_processor()


def _unnamed_processor() -> str:
    import platform

    return platform.processor() or platform.machine()


@cache
def cpu_flags() -> frozenset[str]:
    """The processor's features, as /proc/cpuinfo names them; none where it cannot be read."""
    import re

    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", read_text(CPUINFO), re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def read_text(file: Path) -> str:
    """The text of a file that not every system has; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def revision(file: Path = Path(__file__)) -> str | None:
    """The commit of the code, with `-dirty` if it was changed since; None where git does not track `file`.

    A wheel may be installed inside a user's own repository, whose commit says nothing about this code.
    """
    import subprocess

    try:
        _git(file.parent, "ls-files", "--error-unmatch", file.name)
        return _git(file.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    import subprocess

    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
