"""A Ray cluster of two hosts of one CPU each, both of them this machine, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "programs" / "ray_cluster.py"
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
"""What the cluster, and a sweep that uses it, are started with. Ray's own niceness of 15 starves its workers where
other processes run.
"""


@dataclass(frozen=True)
class RayCluster:
    """A running cluster; `second_host` is the process of its second host, whose children are its workers."""

    process: subprocess.Popen[str]
    address: str
    second_host: int

    def kill_second_host(self) -> None:
        """Asks for its end and does not wait for it."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def two_hosts() -> Iterator[RayCluster]:
    """Needs the extra `ray`. The cluster ends with the context."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM)], env=os.environ | ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        address, second_host = process.stdout.readline().split()
        yield RayCluster(process, address, int(second_host))
    finally:
        process.communicate(timeout=60)
