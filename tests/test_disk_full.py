"""A disk that is full while a model is saved: a plain message, and the same command goes on once there is room."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is a tmpfs, and only root mounts one"),
]
WORDS = ("+policy=sled", "model=toy", "workload=smoke", "tracking.uri=none")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1.5 MB: room for the corpus, not for the model."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", folder], check=False).returncode:
        pytest.skip("this machine lets no tmpfs be mounted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def run(outputs: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline", *WORDS, f"outputs={outputs}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def test_a_run_goes_on_after_a_full_disk_got_room(small_disk: Path) -> None:
    refused = run(small_disk)
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert f"error: no space left on the disk of {small_disk / 'artifacts'} while building" in refused.stderr
    assert list((small_disk / "artifacts" / "corpus").iterdir())
    subprocess.run(["mount", "-o", "remount,size=100m", small_disk], check=True)
    done = run(small_disk)
    assert done.returncode == 0, done.stderr
    assert "corpus: started" not in done.stderr
