"""Conversations and rounds a second of this project's simulator beside dsdSim, a public simulator in Python.

`python -m benchmarks.dsdsim CHECKOUT [--python PYTHON]`: CHECKOUT is a checkout of yfzzzyyls/dsdSim from GitHub, here
commit 02c2a91, and PYTHON an interpreter with the packages that it imports. The two run in turn, in processes of their
own, on one core each; seconds are process time. A round is one verification of a draft window. What is matched and
what is not is in `NOTES`, which are printed with the figures.

dsdSim's own setting "vanilla" stops at the first conversation of a device, because only its setting "eagle" records
the acceptance ratio that `DraftServer._generate_blocking` asks for; the driver sets that ratio beforehand. It also
imports Vidur, which is not in its repository; the driver puts an empty module in its place, because constant latencies
do not use it. Neither changes a file of CHECKOUT.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import yaml

from benchmarks import simulation
from native import loader
from serving.metrics.batch_timing import BatchObserver
from serving.runtimes.emulated import simulate
from serving.workload.arrivals import ClosedLoop

ALTERNATIONS = 7
DEVICES, CONVERSATIONS = 100, 1000
"""What `benchmarks.simulation speed` simulates."""
WINDOW_TOKENS, BATCH_REQUESTS = 4, 48
SIMULATED_S = 200.0
"""dsdSim ends at a time, not at a number of conversations: 1,200 end in this time."""
DRAFT_TOKEN_MS, LINK_MS = 60.0, 2.25
"""Of a device and a message here, without jitter."""
VERIFY_MS = 256.0
"""Of a batch: longer than a device takes to draft and send, so that 48 requests wait at its end."""
COLLECT_MS = 1.0
"""dsdSim's target takes waiting requests only while it waits for more, so this cannot be 0."""
PACKAGES = {"simpy": "simpy", "yaml": "pyyaml", "numpy": "numpy", "joblib": "joblib"}
"""Module -> package."""
NOTES = f"""\
Matched: {DEVICES} devices in a closed loop without a pause, one node that verifies, windows of {WINDOW_TOKENS} drafts,
each right with probability {simulation.OUTCOMES.acceptance_rate}, prompts of {simulation.PROMPT_TOKENS} tokens, \
answers of {simulation.NEW_TOKENS}, no jitter. Seconds are of the simulation
alone, without imports, configuration and statistics: the median of {simulation.RUNS} runs after the first, \
in each process.
What dsdSim leaves out of this work:
- Drafted tokens count as written, right or wrong, so the rounds follow from the answer's length alone
  (sim.py, DraftServer._generate_blocking).
- The verifying model adds no token of its own to the accepted ones (sim.py, DraftServer._simulate_verification).
- A batch takes the time of one request: TargetServer._estimate_batch_latency_from_provider (sim.py) passes the size,
  DefaultPerformanceProvider.get_metrics (performance/default_provider.py) ignores it. The provider `vidur` uses it,
  but needs Vidur's sources and profiles, which are not in the repository.
- No cache lasts from one round to the next: a request's tokens take memory until its batch ends (sim.py,
  PhaseScheduler._dispatch_batch_proc and TargetServer._serve_loop).
- A message takes a constant time in these runs, which is dsdSim's fastest setting; it can also time bytes and queues
  of a link (network/fabric.py, NetworkFabric), as this project's simulator does in these runs.
dsdSim sends the prompt in a request of its own, which is in its batches and its time but is not counted as a round;
this project's simulator sends it with the first round's drafts."""
_FIND_MISSING = """
import sys
from importlib.util import find_spec
print(*[name for name in sys.argv[1:] if find_spec(name) is None])
"""
_DRIVER = """
import contextlib, gc, json, os, statistics, sys, time, types

source, config, acceptance, runs = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
vidur = types.ModuleType("performance.vidur_realtime")
vidur.VidurRealtimeRunner = vidur.get_shared_vidur_runner = None
sys.modules[vidur.__name__] = vidur
sys.path.insert(0, source)


def measure():
    settings = sim.load_config(config)
    gc.collect()
    began = time.process_time()
    metrics, targets, _ = sim.run(settings)
    seconds = time.process_time() - began
    rounds = sum(job.job_type == "decode" for job in metrics.completed)
    requests, batches = sum(t.total_batch_items for t in targets), sum(t.total_batches for t in targets)
    return seconds, len(metrics.conversations), rounds, requests / max(1, batches)


with open(os.devnull, "w") as unread, contextlib.redirect_stdout(unread):
    import sim

    build = sim.build

    def build_with_acceptance(env, settings):
        parts = build(env, settings)
        for draft in parts[2]:
            draft._recent_acceptance.update(dict.fromkeys(draft.connections, acceptance))
        return parts

    sim.build = build_with_acceptance
    found = [measure() for _ in range(runs + 1)][1:]
names = ("seconds", "conversations", "rounds", "batch_requests")
print(json.dumps({name: statistics.median(values) for name, values in zip(names, zip(*found))}))
"""


class Work(NamedTuple):
    """What a simulator did in its runs; these counts are the same in every run."""

    rounds_per_conversation: float
    batch_requests: float


def find_problem(checkout: Path, python: str) -> str:
    """Why dsdSim cannot run, in a line that says what to do; empty: it can."""
    if not (checkout / "src" / "sim.py").is_file():
        return f"{checkout} has no src/sim.py; give the path of a checkout of yfzzzyyls/dsdSim from GitHub"
    try:
        command = [python, "-c", _FIND_MISSING, *PACKAGES]
        told = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return f"{python} does not run Python; give an interpreter with --python"
    if names := told.stdout.split():
        missing = " ".join(PACKAGES[name] for name in names)
        return f"{python} lacks what dsdSim imports: `{python} -m pip install {missing}`, or give another with --python"
    return ""


def dsdsim_config() -> dict[str, Any]:
    """The matched work in dsdSim's terms; keys that are not here keep its defaults."""
    devices = [f"device-{i}" for i in range(DEVICES)]
    return {
        "sim_time_ms": 1e3 * SIMULATED_S,
        "seed": 0,
        "verbose": False,
        "gamma": WINDOW_TOKENS,
        "answer_length": simulation.NEW_TOKENS,
        "prompt_length_min": simulation.PROMPT_TOKENS,
        "prompt_length_max": simulation.PROMPT_TOKENS,
        "prompt_scale_by_capability": False,
        "workload": {"rate_rps": 0},  # or a device waits between conversations
        "think_time": {"enabled": True, "distribution": "constant", "mean_ms": 0, "min_ms": 0},  # it refuses `false`
        "speculation": {"framework": "vanilla", "acceptance": {"disable_model": True}},
        "network": {"enabled": False},
        "performance_model": {"type": "default"},
        "scheduler": {phase: {"max_batch_requests": 1} for phase in ("prefill", "decode")},  # the target alone batches
        "devices": [_target(), *map(_draft, devices)],
        "connections": [_connection(device) for device in devices],
    }


def _target() -> dict[str, Any]:
    return {
        "id": "cloud-0",
        "role": "target",
        "batch_size": BATCH_REQUESTS,
        "batch_window_ms": COLLECT_MS,
        "prefill_latency_per_token": VERIFY_MS / simulation.PROMPT_TOKENS,
        "decode_latency_per_token": VERIFY_MS / WINDOW_TOKENS,
    }


def _draft(device: str) -> dict[str, Any]:
    """Without a model's name, drafting takes no time."""
    return {"id": device, "role": "draft", "model": "draft", "decode_latency_per_token": DRAFT_TOKEN_MS}


def _connection(device: str) -> dict[str, Any]:
    return {
        "draft": device,
        "target": "cloud-0",
        "forward_latency_ms": LINK_MS,
        "response_latency_ms": LINK_MS,
        "acceptance_rate": simulation.OUTCOMES.acceptance_rate,
    }


def measure_dsdsim(checkout: Path, python: str, config: Path) -> dict[str, float]:
    """Seconds, conversations, rounds and requests a batch of one process."""
    given = (checkout / "src", config, simulation.OUTCOMES.acceptance_rate, simulation.RUNS)
    command = [python, "-B", "-c", _DRIVER, *map(str, given)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if told.returncode:
        sys.exit("dsdSim did not run, for the reason above; this benchmark is written for its commit 02c2a91")
    found: dict[str, float] = json.loads(told.stdout)
    if not found["conversations"]:
        sys.exit("dsdSim finished no conversation; this benchmark is written for its commit 02c2a91")
    return found


def our_conversations_per_s() -> float:
    """Of one process."""
    command = [sys.executable, "-m", simulation.__name__, "speed"]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def our_work() -> Work:
    """From the records and the batches of one run of the queries that `benchmarks.simulation speed` simulates."""
    setup, observer = simulation.without_jitter(simulation.testbed(DEVICES, 1)), BatchObserver()
    queries = simulation.make_queries(CONVERSATIONS, DEVICES, ClosedLoop())
    engines = simulation.OUTCOMES.open(queries, setup.policy, 0)
    records = simulate(setup, engines, queries, observers=[observer], detail=False)
    rounds = sum(record.num_verified for record in records.values())
    return Work(rounds / len(records), mean(len(batch.work.slices) for batch in observer.batches))


def print_comparison(ours: Sequence[float], theirs: Sequence[dict[str, float]]) -> None:
    """`ours` are conversations a second; rounds a second follow, because every run has the same rounds."""
    work = our_work()
    dsdsim = Work(theirs[0]["rounds"] / theirs[0]["conversations"], theirs[0]["batch_requests"])
    _print_ratio("conversations/s", ours, [one["conversations"] / one["seconds"] for one in theirs])
    our_rounds = [work.rounds_per_conversation * found for found in ours]
    _print_ratio("rounds/s", our_rounds, [one["rounds"] / one["seconds"] for one in theirs])
    print(f"rounds a conversation: {work.rounds_per_conversation:.1f}, dsdSim {dsdsim.rounds_per_conversation:.1f}")
    print(f"requests a batch: {work.batch_requests:.1f}, dsdSim {dsdsim.batch_requests:.1f}")


def _print_ratio(name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
    ratio = median(ours) / median(theirs)
    print(f"{name}: {_format_range(ours)} with the {loader.describe()} core, dsdSim {_format_range(theirs)}; "
          f"{ratio:.2f} times")  # fmt: skip


def _format_range(found: Sequence[float]) -> str:
    return f"{median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="path of a checkout of dsdSim")
    parser.add_argument("--python", default=sys.executable, help="interpreter with what dsdSim imports")
    args = parser.parse_args(argv)
    if problem := find_problem(args.checkout, args.python):
        sys.exit(problem)
    ours, theirs = list[float](), list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(yaml.safe_dump(dsdsim_config()), encoding="utf-8")
        for _ in range(ALTERNATIONS):
            theirs.append(measure_dsdsim(args.checkout, args.python, config))
            ours.append(our_conversations_per_s())
    print_comparison(ours, theirs)
    print(NOTES)


if __name__ == "__main__":
    main()
