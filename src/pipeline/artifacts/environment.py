"""The environment of a result: code revision, versions, machine."""

from collections.abc import Mapping
from pathlib import Path

from native.machine import memory_nbytes, processor, usable_cores

DISTRIBUTION = "tandem-llm"
DIRTY = "-dirty"
"""Ends the revision of a checkout with changes that were not committed, as git has it."""
PACKAGES = ("torch", "transformers", "lightning", "mlflow", "hydra-core", "numpy", "pyarrow")


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

    return {
        "processor": processor(),
        "cores": usable_cores(),
        "memory_gib": round(memory_nbytes() / 2**30, 1),
        "system": platform.platform(terse=True),
        **_gpu(accelerator),
    }


def _gpu(accelerator: str) -> dict[str, str]:
    if not accelerator.startswith("cuda"):
        return {}
    import torch

    return {"gpu": torch.cuda.get_device_name(accelerator)} if torch.cuda.is_available() else {}


def revision(file: Path = Path(__file__)) -> str | None:
    """The commit of the code, with `DIRTY` if it was changed since; None where git does not track `file`.

    A wheel may be installed inside a user's own repository, whose commit says nothing about this code.
    """
    import subprocess

    try:
        _git(file.parent, "ls-files", "--error-unmatch", file.name)
        return _git(file.parent, "describe", "--always", f"--dirty={DIRTY}", "--abbrev=40", "--exclude=*") or None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    import subprocess

    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
