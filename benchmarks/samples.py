"""Where the simulator's time goes: perf's samples of the compiled core, each counted for the innermost function on its
stack that belongs to a part.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import which

from native import loader

MODULES = {
    "devices: sessions, drafts, verdicts": (
        "device", "requester", "speculator", "session", "round_timing", "hop_path", "draft_tree", "link_monitor",
    ),
    "records": ("recorder",),
    "cloud nodes: queues, batches, caches": (
        "worker", "compute_queue", "kv_accounting", "queued_request", "reservations", "session_registry", "estimator",
    ),
    "chips: outcomes drawn, and their seconds": (
        "timed_executor", "latency", "roofline", "sampled_engine", "acceptance_draws",
    ),
    "the simulator itself": ("simulator",),
    "links": ("channel",),
}  # fmt: skip
"""The compiled modules of each part. Others, as messages and random numbers, count for the function that calls them."""
FUNCTIONS = {"heap of events": re.compile("heap|sift"), "garbage collector": re.compile("gc_collect")}
"""Parts that are Python's own."""
_PARTS = {module: part for part, modules in MODULES.items() for module in modules}
_COMPILED = re.compile(r"CPy(?:Def|Py)_(\w+?)___")
"""mypyc's names of functions begin with their module's."""
_SIMULATING = "CPyDef_simulator___Simulator____run"
SAMPLES_PER_S = 99
"""Of a run of half a minute; shorter ones ask for more."""
STACK_NBYTES = 16384


def find_problem() -> str | None:
    """What this machine lacks, for people; None where nothing is missing."""
    if loader.describe() != "compiled":
        return "perf sees the parts of the compiled core alone, which is not in use: make compiled"
    return None if which("perf") else "perf is not installed (Debian: linux-perf)"


def print_shares(*words: str, samples_per_s: int = SAMPLES_PER_S) -> bool:
    """Prints each part's share of the samples of `python WORDS`; False where they cannot be taken."""
    if problem := find_problem():
        print(problem, file=sys.stderr)
        return False
    with tempfile.TemporaryDirectory() as folder:
        counts = Counter(filter(None, map(part_of, _stacks(Path(folder) / "perf.data", words, samples_per_s))))
    for part in (*MODULES, *FUNCTIONS):
        print(f"{part:42}{100 * counts[part] / max(1, counts.total()):5.1f} %")
    print(f"{'samples':42}{counts.total():5}")
    return counts.total() > 0


def part_of(stack: Sequence[str]) -> str | None:
    """The part of the function at the top of a stack; None outside of a simulation."""
    if _SIMULATING not in stack:
        return None
    return next(filter(None, map(_part_of_function, stack)))


def _part_of_function(name: str) -> str | None:
    if found := _COMPILED.match(name):
        return _PARTS.get(found[1])
    return next((part for part, names in FUNCTIONS.items() if names.search(name)), None)


def _stacks(file: Path, words: Sequence[str], samples_per_s: int) -> Iterator[list[str]]:
    """The functions on the stack of each sample, the innermost one first."""
    record = ["perf", "record", "-q", "-F", str(samples_per_s), "-e", "cpu-clock"]
    record += ["--call-graph", f"dwarf,{STACK_NBYTES}", "-o", str(file)]
    subprocess.run([*record, "--", sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    script = ["perf", "script", "-i", str(file), "--no-inline", "-F", "ip,sym"]
    told = subprocess.run(script, check=True, capture_output=True, text=True)
    for block in told.stdout.split("\n\n"):
        yield [line.split(maxsplit=1)[1] for line in block.splitlines() if len(line.split()) > 1]
