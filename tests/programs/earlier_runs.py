"""Writes tests/serving/earlier_runs.json anew: what simulations with drawn outcomes decide, and when, in this version.

python -m tests.programs.earlier_runs
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from serving.deployment.setup import Setup
from serving.log.event_log import EventHandled
from serving.log.replay import decision_log
from serving.policy.slots.delay_draft import DelayAdaptiveDraft
from serving.policy.slots.draft import TreeDraft
from serving.policy.slots.placement import ColocatedPlacement
from serving.policy.slots.verify import TreeVerify
from serving.runtimes.emulated import simulate
from tests.serving.runtimes.test_shards import ARRIVALS, OUTCOMES, SETUPS, cloud, made_queries
from tests.support.simulated_nodes import Log

FILE = Path(__file__).parents[1] / "serving" / "earlier_runs.json"
RUNS: dict[str, Setup] = {
    **SETUPS,
    "trees": cloud("sled", draft=TreeDraft(6, 3, 2), verify=TreeVerify()),
    "delay_adaptive": cloud("sled", draft=DelayAdaptiveDraft(6), placement=ColocatedPlacement()),
}


def run(setup: Setup) -> dict[str, Any]:
    """The number of events, a digest of the decisions, and the times of the last event and, in the mean, of all.

    Decisions are whole numbers and names, which do not depend on how a machine rounds; times do, in their last digits.
    """
    log, queries = Log(), made_queries(ARRIVALS["poisson"])
    simulate(setup, OUTCOMES.open(queries, setup.policy, 1), queries, observers=[log])
    entries = [EventHandled(node, at_s, event, commands) for node, event, at_s, commands in log.entries]
    times_s = [entry.at_s for entry in entries]
    decisions = json.dumps(decision_log(entries)).encode()
    return {
        "events": len(times_s),
        "decisions": hashlib.sha256(decisions).hexdigest()[:16],
        "last_s": times_s[-1],
        "mean_s": sum(times_s) / len(times_s),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: run(setup) for name, setup in RUNS.items()}, indent=1) + "\n", encoding="utf-8")
