import os
from pathlib import Path

import pytest


@pytest.fixture
def data() -> Path:
    """The folder of real data sets, named by TANDEM_DATA."""
    folder = os.environ.get("TANDEM_DATA")
    if not folder:
        pytest.skip("TANDEM_DATA is not set: no real data sets to read")
    return Path(folder)
