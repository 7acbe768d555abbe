"""The compiled core does what its sources do: the same logs, records and plans."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native import build
from native.modules import MODULES

ROOT = Path(__file__).parents[2]


def digests(program: str, pure: bool, *arguments: str) -> list[str]:
    """The lines of the program, of which the first says which core it used."""
    env = {**os.environ, "TANDEM_FROZEN": "0", "TANDEM_PURE": str(int(pure)), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests" / "programs" / program), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.slow
def test_every_policy_logs_the_same_in_both_builds(tmp_path: Path) -> None:
    if not build.is_current():
        pytest.skip("the core is not compiled: make compiled")
    pure, compiled = (digests("log_digests.py", pure, str(tmp_path)) for pure in (True, False))
    assert (pure[0], compiled[0]) == ("pure", "compiled")
    assert {line.rpartition(" ")[0] for line in pure} >= {"hyperion+failures 0.0", "drawn in shards", "fitted trees"}
    assert len(pure) > 70
    assert pure[1:] == compiled[1:]


@pytest.mark.slow
def test_every_policy_and_testbed_is_planned_the_same_in_both_builds() -> None:
    if not build.is_current():
        pytest.skip("the core is not compiled: make compiled")
    pure, compiled = (digests("plan_digests.py", pure) for pure in (True, False))
    assert (pure[0], compiled[0]) == ("pure", "compiled")
    assert len(pure) > 40
    assert pure[1:] == compiled[1:]


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_annotations_are_there_whichever_module_is_imported_first(module: str) -> None:
    if not build.is_current():
        pytest.skip("the core is not compiled: make compiled")
    program = f"import {module}; import serving.messages as m; print(m.GenerationRequest.__annotations__['prompt'])"
    env = {**os.environ, "TANDEM_FROZEN": "0", "TANDEM_PURE": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "TokenIds\n", done.stderr[-2000:]
