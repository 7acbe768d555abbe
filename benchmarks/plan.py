"""Seconds of a whole `stage=plan` process: median of several runs, at most 1 s."""

import statistics
import subprocess
import sys
import time

COMMAND = [sys.executable, "-m", "pipeline", "+policy=synera", "stage=plan"]
RUNS = 7
LIMIT_S = 1.0


def main() -> bool:
    seconds = sorted(_timed() for _ in range(RUNS))
    median = statistics.median(seconds)
    print(
        f"stage=plan: median {median:.2f} s of {RUNS} runs ({seconds[0]:.2f} to {seconds[-1]:.2f}); limit {LIMIT_S} s"
    )
    return median <= LIMIT_S


def _timed() -> float:
    began = time.perf_counter()
    subprocess.run(COMMAND, check=True, capture_output=True)
    return time.perf_counter() - began
