"""What this machine gives a process."""

import os


def usable_cores() -> int:
    """Cores that this process may use; all of the machine where the system does not say, as on macOS."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
