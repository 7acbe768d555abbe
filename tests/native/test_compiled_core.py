"""The compiled core does what its sources do: the same log and the same records for every policy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native import build

ROOT = Path(__file__).parents[2]


def digests(outputs: Path, pure: bool) -> list[str]:
    """The lines of the program, of which the first says which core it used."""
    env = {**os.environ, "TANDEM_FROZEN": "0", "TANDEM_PURE": str(int(pure)), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests" / "programs" / "log_digests.py"), str(outputs)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.slow
def test_every_policy_logs_the_same_in_both_builds(tmp_path: Path) -> None:
    if not build.is_current():
        pytest.skip("the core is not compiled: make compiled")
    pure, compiled = digests(tmp_path, pure=True), digests(tmp_path, pure=False)
    assert (pure[0], compiled[0]) == ("pure", "compiled")
    assert len(pure) > 35
    assert pure[1:] == compiled[1:]
