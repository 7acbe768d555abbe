"""Ten simulated jobs one after the other, and in worker processes on two cores: seconds of both commands.

Beside it what two cores give: a single job alone, and two commands of one job at once.
"""

import os
import subprocess
import sys
import tempfile
import time

JOBS, PROMPTS = 10, 1800
ATTEMPTS = 2
"""A machine that does other things has no core to spare for a while."""
CORES, AIM, MIN_SPEEDUP, MIN_SHARE = 2, 1.8, 1.4, 0.8
"""The aim is docs/sweeps.md's; the limits are a gain, and a share of what two commands at once gain in the same run."""
JOB = (
    sys.executable, "-m", "pipeline", "+policy=sled", "model=qwen3_hub", "workload=synthetic",
    f"workload.num_prompts={PROMPTS}", "workload.devices=100", "runtime=simulated", "runtime/outcomes=constant",
    "tracking.uri=none",
)  # fmt: skip
SWEEP = (*JOB, "-m", f"seed=range({JOBS})")


def main() -> bool:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < CORES:
        print("sweep: skipped, this machine has one core")
        return True
    os.sched_setaffinity(0, sorted(allowed)[:CORES])  # of the commands, too
    try:
        return any(_is_fast() for _ in range(ATTEMPTS))
    finally:
        os.sched_setaffinity(0, allowed)


def _is_fast() -> bool:
    possible = CORES * _seconds(JOB) / _seconds(*[JOB] * CORES)
    basic_s, workers_s = _seconds(SWEEP), _seconds((*SWEEP, "hydra/launcher=joblib"))
    found = basic_s / workers_s
    print(f"{JOBS} simulated jobs, one after the other {basic_s:.0f} s, joblib on {CORES} cores {workers_s:.0f} s: "
          f"{found:.2f} times as fast, aim {AIM}; {CORES} commands at once {possible:.2f} times, "
          f"limits {MIN_SPEEDUP} and {MIN_SHARE} of that")  # fmt: skip
    return found >= max(MIN_SPEEDUP, MIN_SHARE * possible)


def _seconds(*commands: tuple[str, ...]) -> float:
    """Of all commands at once."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        running = [
            subprocess.Popen([*words, f"outputs={folder}/{i}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for i, words in enumerate(commands)
        ]
        codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError(f"a command failed: {' '.join(commands[0])}")
        return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
