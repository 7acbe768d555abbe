"""Seconds of whole processes, medians of several runs: `stage=plan` at most 0.6 s, `--help` 0.4 s, a misspelt choice
0.2 s, of which starting Python is the larger part.

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
HELP_LIMIT_S = 0.4
MISSPELT, MISSPELT_LIMIT_S = ("+policy=snera",), 0.2


def main() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder)
        for name in ("src", "conf"):
            shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "lib"))
        print(f"stage=plan, first in a fresh clone: {_timed(WORDS, clone):.2f} s")
        _timed(WORDS, clone)  # warms up
        known = sorted(_timed(WORDS, clone) for _ in range(RUNS))
        composed = sorted(_timed((*WORDS, f"seed={number}"), clone) for number in range(1, RUNS + 1))
        shown = sorted(_timed(("--help",), clone) for _ in range(RUNS))
        refused = sorted(_timed(MISSPELT, clone, status=2) for _ in range(RUNS))
        unknown = sorted(_timed((*WORDS, "policy.draft.kk=3"), clone, status=2) for _ in range(RUNS))
    print(f"stage=plan, other words each time: {_described(composed)}")
    print(f"an option that does not exist, known once all is composed: {_described(unknown)}")
    return all(
        [
            _passes("stage=plan", known, LIMIT_S),
            _passes("--help", shown, HELP_LIMIT_S),
            _passes(" ".join(MISSPELT), refused, MISSPELT_LIMIT_S),
        ]
    )


def _passes(name: str, seconds: Sequence[float], limit_s: float) -> bool:
    print(f"{name}: {_described(seconds)}; limit {limit_s} s")
    return statistics.median(seconds) <= limit_s


def _described(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s of {len(seconds)} runs ({seconds[0]:.2f} to {seconds[-1]:.2f})"


def _timed(words: Sequence[str], clone: Path, status: int = 0) -> float:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(clone / "src")
    began = time.perf_counter()
    command = [sys.executable, "-m", "pipeline", *words]
    done = subprocess.run(command, check=False, capture_output=True, cwd=clone, env=environment)
    seconds = time.perf_counter() - began
    if done.returncode != status:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.decode()}")
    return seconds
