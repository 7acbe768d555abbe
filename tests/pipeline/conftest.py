import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.report.mlflow_store import Tracking

CONNECT_PROGRAM = Path(__file__).parents[1] / "programs" / "connect_mlflow.py"


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """A store that two processes created at once, and what each printed and complained about."""
    outputs = tmp_path_factory.mktemp("store")
    command = [sys.executable, str(CONNECT_PROGRAM), str(outputs)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    return outputs / "mlflow.db", [process.communicate(timeout=120) for process in both]


@pytest.fixture
def tracking(fresh: tuple[Path, list[tuple[str, str]]], tmp_path: Path) -> Tracking:
    """A migrated store of the test's own: creating one takes seconds, copying none."""
    shutil.copy(fresh[0], tmp_path / "mlflow.db")
    return Tracking(outputs=str(tmp_path))
