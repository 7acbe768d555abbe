"""How long the threads of libgomp spin, which is fixed when torch is loaded."""

import os
import subprocess
import sys

import pytest

PRINT = "import os, pipeline; print(os.environ['GOMP_SPINCOUNT'])"


@pytest.mark.parametrize(("given", "found"), [(None, "2000"), ("7", "7")])
def test_threads_spin_briefly_unless_the_environment_says_otherwise(given: str | None, found: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    environment |= {"GOMP_SPINCOUNT": given} if given else {}
    done = subprocess.run([sys.executable, "-c", PRINT], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found


def test_torch_is_loaded_after_the_setting() -> None:
    code = "import sys, pipeline; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
