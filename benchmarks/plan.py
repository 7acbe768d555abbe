"""Seconds of a whole `stage=plan` process: median of several runs, at most 0.6 s.

The first run of a copy of the project as it is cloned, without bytecode and outputs, is printed alone. Then come runs
of the same command, which Hydra need not compose, and runs of commands that it has not composed before. All may write
bytecode, as on any machine where PYTHONDONTWRITEBYTECODE is not set.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = ("+policy=synera", "hardware=jetson_orin", "stage=plan")
"""The command of the aim."""
RUNS = 7
LIMIT_S = 0.6


def main() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder)
        for name in ("src", "conf"):
            shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "lib"))
        print(f"stage=plan, first in a fresh clone: {_timed(WORDS, clone):.2f} s")
        _timed(WORDS, clone)  # warms up
        known = sorted(_timed(WORDS, clone) for _ in range(RUNS))
        composed = sorted(_timed((*WORDS, f"seed={number}"), clone) for number in range(1, RUNS + 1))
    print(f"stage=plan, other words each time: {_described(composed)}")
    print(f"stage=plan: {_described(known)}; limit {LIMIT_S} s")
    return statistics.median(known) <= LIMIT_S


def _described(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s of {len(seconds)} runs ({seconds[0]:.2f} to {seconds[-1]:.2f})"


def _timed(words: Sequence[str], clone: Path) -> float:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(clone / "src")
    began = time.perf_counter()
    command = [sys.executable, "-m", "pipeline", *words]
    subprocess.run(command, check=True, capture_output=True, cwd=clone, env=environment)
    return time.perf_counter() - began
