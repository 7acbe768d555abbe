"""`build_artifacts.py` on a host of its own: its own name and boot id, and file locks that no other host sees.

    python build_on_host.py NAME BOOT_ID ROOT [STAGE]

Leases are as in use, but for how long a process waits: it says that it is there every few milliseconds, and asks as
often.
"""

import socket
import sys
from pathlib import Path

from filelock import FileLock

from pipeline.artifacts import build_lock, lease
from tests.programs import build_artifacts

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
OFTEN_S = 0.02


def become_host(name: str, boot_id: str, folder: Path) -> None:
    """Makes this process one of another host, whose file locks are in `folder`."""
    read_text = Path.read_text
    Path.read_text = lambda path, *a, **b: boot_id if path == BOOT_ID else read_text(path, *a, **b)  # type: ignore[method-assign]
    socket.gethostname = lambda: name
    folder.mkdir(exist_ok=True)
    build_lock._lock = lambda _, key: FileLock(folder / f"{key}.lock")
    build_lock._RETRY_S = lease.HEARTBEAT_S = OFTEN_S


if __name__ == "__main__":
    become_host(*sys.argv[1:3], Path(sys.argv[3]) / f".locks of {sys.argv[2]}")
    build_artifacts.main(*sys.argv[3:])
