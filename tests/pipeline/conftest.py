import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from pipeline.report.mlflow_store import Tracking

CONNECT_PROGRAM = Path(__file__).parents[1] / "programs" / "connect_mlflow.py"


@pytest.fixture(scope="session")
def fresh(run_folder: Path) -> tuple[Path, list[tuple[str, str]]]:
    """A store that two processes created at once, and the (stdout, stderr) of each; one for all test workers."""
    outputs = run_folder / "store"
    outputs.mkdir(exist_ok=True)
    printed = outputs / "printed.json"
    with FileLock(outputs / "lock"):
        if not printed.exists():
            command = [sys.executable, str(CONNECT_PROGRAM), str(outputs)]
            both = [
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
            ]
            printed.write_text(json.dumps([process.communicate(timeout=120) for process in both]))
    return outputs / "mlflow.db", [tuple(texts) for texts in json.loads(printed.read_text())]


@pytest.fixture
def tracking(fresh: tuple[Path, list[tuple[str, str]]], tmp_path: Path) -> Tracking:
    """A migrated store of the test's own: creating one takes seconds, copying none."""
    shutil.copy(fresh[0], tmp_path / "mlflow.db")
    return Tracking(outputs=str(tmp_path))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the figures of jobs small pictures, where a test looks at something else: to draw them takes a second."""
    from PIL import Image

    def draw(_records: object, path: Path, *_: object) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
        return path

    for name in ("draw_latency", "draw_timeline"):
        monkeypatch.setattr(f"pipeline.report.figures.{name}", draw)
