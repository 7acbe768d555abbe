"""Prints a digest of the log and the records of every policy, and of drawn outcomes, with the core that is in use.

python tests/programs/log_digests.py OUTPUTS [POLICY ...]
"""

import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import simulation
from native import loader
from serving.deployment.queries import LoadedModels, Query
from serving.deployment.setup import Setup
from serving.log.event_log import EventLog
from serving.runtimes.emulated import simulate
from serving.workload.arrivals import ClosedLoop
from tests.test_same_decisions import POLICIES, SAMPLED, case


def digest(setup: Setup, models: LoadedModels, queries: Sequence[Query], folder: Path) -> str:
    """Of every event, command, work item and message of a run, and of what was recorded of each session."""
    with EventLog(folder / "log", {}) as log:
        records = simulate(setup, models, queries, observers=[log])
    recorded = "".join(f"{name} {records[name]!r}\n" for name in sorted(records))
    return hashlib.sha256((folder / "log").read_bytes() + recorded.encode()).hexdigest()[:16]


def main(outputs: Path, policies: Sequence[str]) -> None:
    print("compiled" if loader.in_use else "pure")
    with tempfile.TemporaryDirectory() as folder:
        for policy, temperature in [(name, 0.0) for name in policies] + [(name, 0.8) for name in SAMPLED]:
            if policy in policies:
                run = case(policy, temperature, outputs)
                print(policy, temperature, digest(run.setup, run.models, run.queries, Path(folder)))
        setup, queries = simulation.testbed(20, 1), simulation.make_queries(60, 20, ClosedLoop())
        print("drawn", digest(setup, simulation.OUTCOMES.open(queries, setup.policy, 0), queries, Path(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or POLICIES)
