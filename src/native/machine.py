"""What this machine is, and what it gives a process. Systems without /proc, as macOS, say less."""

import os
import re
from functools import cache
from pathlib import Path

CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def usable_cores() -> int:
    """Cores that this process may use; all of the machine where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's model; its architecture where the system does not say."""
    import platform

    found = re.search(r"^model name\s*:\s*(.*)$", _read(CPUINFO), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


@cache
def cpu_flags() -> frozenset[str]:
    """The processor's features, as /proc/cpuinfo names them; none where it cannot be read."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _read(CPUINFO), re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def memory_nbytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_nbytes() -> int:
    """Memory that programs may still take: the kernel gives up its cache of files for them. All of the machine's where
    the system does not say.
    """
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", _read(MEMINFO), re.MULTILINE)
    return int(found[1]) * 1024 if found else memory_nbytes()


def _read(file: Path) -> str:
    """The text of a file that not every system has; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
