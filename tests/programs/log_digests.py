"""Prints digests of the log and the records of every policy, of failing nodes and of drawn outcomes, with the core that
is in use; of a testbed in shards, which have no log in common, of its batches and records.

python tests/programs/log_digests.py OUTPUTS [POLICY ...]
"""

import hashlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import simulation
from native import loader
from serving.core.decoding import Decoding
from serving.deployment import shards
from serving.deployment.queries import LoadedModels, Query
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.log.event_log import EventLog
from serving.metrics.batch_timing import BatchObserver
from serving.metrics.recorder import SessionRecord
from serving.outcomes.fit import fit_acceptance
from serving.outcomes.shifted import shift
from serving.policy.slots.dispatch import Affinity
from serving.policy.slots.draft import TreeDraft, WindowDraft
from serving.policy.slots.verify import TreeVerify
from serving.runtimes.emulated import simulate
from serving.workload.arrivals import ClosedLoop
from serving.workload.prompt import Prompt
from serving.workload.workload import WorkloadRequest
from tests.serving.outcomes.made_up_trace import trace
from tests.support.fake_setup import setup
from tests.test_same_decisions import OTHER_TIERS, POLICIES, SAMPLED, case

TREE = {"draft": TreeDraft(nodes=8, depth=3, branching=3), "verify": TreeVerify()}
SHORT = {"draft": WindowDraft(4, "confidence", 0.4)}
"""Stops by a drawn score."""
ACCEPTANCE = 0.6


def sha256(parts: bytes, records: Mapping[str, SessionRecord]) -> str:
    recorded = "".join(f"{name} {records[name]!r}\n" for name in sorted(records))
    return hashlib.sha256(parts + recorded.encode()).hexdigest()[:16]


def digest(setup: Setup, models: LoadedModels, queries: Sequence[Query]) -> str:
    """Of every event, command, work item and message of a run, and of what was recorded of each session."""
    with tempfile.TemporaryDirectory() as folder:
        with EventLog(Path(folder, "log"), {}) as log:
            records = simulate(setup, models, queries, observers=[log])
        return sha256(Path(folder, "log").read_bytes(), records)


def digest_of_shards() -> str:
    """Of every batch and record of a testbed whose parts are simulated in turn."""
    shards._DEVICES_PER_SHARD = 5
    made, queries, timing = simulation.testbed(24, 5), simulation.make_queries(48, 24, ClosedLoop()), BatchObserver()
    made = replace(made, policy=replace(made.policy, dispatch=Affinity()))
    models = simulation.OUTCOMES.open(queries, made.policy, 0)
    assert len(shards.divide(Topology(made, models.cloud_layers))) > 1
    records = simulate(made, models, queries, observers=[timing], may_divide=True)
    return sha256(repr(timing.batches).encode(), records)


def drawn() -> Iterator[tuple[str, str]]:
    """The name and digest of each run whose outcomes are drawn."""
    made, queries = simulation.testbed(20, 1), simulation.make_queries(60, 20, ClosedLoop())
    yield "drawn", digest(made, simulation.OUTCOMES.open(queries, made.policy, 0), queries)
    yield "drawn in shards", digest_of_shards()
    fitted = fit_acceptance(trace(), 0)
    wanted = [WorkloadRequest(i, Prompt(f"q{i}", "", (), ""), i % 2, i, None, 0.0, 99, 64, None) for i in range(12)]
    for name, model in (("fitted", fitted), ("shifted", shift(fitted, ACCEPTANCE))):
        for shape, slots in (("drafts", SHORT), ("trees", TREE)):
            queries, made = model.make_queries(wanted, Decoding(), 0), setup("sled", override=slots)
            yield f"{name} {shape}", digest(made, model.open(queries, made.policy, 0), queries)


def main(outputs: Path, policies: Sequence[str]) -> None:
    print("compiled" if loader.in_use else "pure")
    for policy, temperature in [(name, 0.0) for name in policies] + [(name, 0.8) for name in SAMPLED]:
        if policy in policies:
            run = case(policy, temperature, outputs)
            print(policy, temperature, digest(run.setup, run.models, run.queries))
    for name, found in drawn():
        print(name, found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or [*POLICIES, *OTHER_TIERS])
