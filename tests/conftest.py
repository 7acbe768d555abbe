import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

os.environ.setdefault("TANDEM_FROZEN", "1")  # before anything imports the messages
os.environ.setdefault("TANDEM_WAIT_FOR_MLFLOW", "1")  # tests read what commands logged
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; test workers with two threads each slow each other down
import pipeline  # noqa: F401 - before torch, since it sets how long threads spin
from pipeline.report import figures
from training.fitting import figures as training_figures

_KINDS = figures._METADATA
gc.set_threshold(100_000, 50, 50)  # by default a tenth of the tests' time is a search for cycles


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test run, which all its workers share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def outputs(run_folder: Path) -> Path:
    """Artifacts of this test run, whose processes build the toy pair once."""
    return run_folder / "experiments"


@contextmanager
def _figures_as(kinds: Mapping[str, Mapping[str, None]]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (figures, training_figures):
            patch.setattr(module, "_METADATA", kinds)
        yield


@pytest.fixture(scope="session", autouse=True)
def _png_alone() -> Iterator[None]:
    """Figures are PNG files alone but where a test asks for `every_kind`: PDF and SVG show the same and take longer."""
    with _figures_as({"png": _KINDS["png"]}):
        yield


@pytest.fixture
def every_kind() -> Iterator[None]:
    with _figures_as(_KINDS):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest tests first, so that no worker waits for one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Leaves what is imported and collected out of every later search for cycles."""
    gc.freeze()
