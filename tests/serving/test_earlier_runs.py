"""Simulations decide what they decided in earlier versions, and as early; earlier_runs.json says what."""

import json

import pytest

from tests.programs.earlier_runs import FILE, RUNS, run

EARLIER = json.loads(FILE.read_text(encoding="utf-8"))
SAME = 1e-9
"""Share of a time. Python 3.11 to 3.13, with NumPy 2.0 to 2.5, differ by 1e-15."""


@pytest.mark.parametrize("name", RUNS)
def test_a_simulation_is_that_of_earlier_versions(name: str) -> None:
    expected = {key: pytest.approx(n, rel=SAME) if isinstance(n, float) else n for key, n in EARLIER[name].items()}
    assert run(RUNS[name]) == expected, "if that is meant, see CONTRIBUTING.md, Tests and benchmarks"


def test_each_run_is_kept() -> None:
    assert list(EARLIER) == list(RUNS)
