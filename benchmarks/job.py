"""The main job with everything but its serving cached: seconds from process start to the first answer, and peak
memory.
"""

import resource
import subprocess
import sys
import time

LIMIT_GB = 3.0
LIMIT_FIRST_ANSWER_S = 8.0
"""An answer is whole after its first token, so this bounds the first token too."""
COMMAND = [sys.executable, "-m", "pipeline", "+policy=synera", "force=[serve]", "tracking.uri=none"]


def main() -> bool:
    first_s, peak_gb = _run()
    print(f"main job: first answer {first_s:.1f} s after process start (limit {LIMIT_FIRST_ANSWER_S} s)")
    print(f"          peak memory {peak_gb:.2f} GB (limit {LIMIT_GB} GB)")
    return peak_gb <= LIMIT_GB and first_s <= LIMIT_FIRST_ANSWER_S


def _run() -> tuple[float, float]:
    began, first_s = time.perf_counter(), None
    with subprocess.Popen(COMMAND, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        for line in process.stderr or ():
            if first_s is None and line.startswith("serve: 1/"):
                first_s = time.perf_counter() - began
    if process.returncode or first_s is None:
        raise SystemExit(f"the main job failed, or did not say when it answered first: {' '.join(COMMAND)}")
    return first_s, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
