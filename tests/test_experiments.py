"""Every experiment of conf/ composes, and runs at toy size; a policy on the command line wins."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import api

CONF = Path(__file__).parents[1] / "conf" / "experiment"
NAMES = sorted(str(file.relative_to(CONF).with_suffix("")) for file in CONF.rglob("*.yaml"))
TOY = (
    "model=toy",
    "workload.prompts=6",
    "workload.devices=2",
    "workload.profiling.prompts=12",
    "trainer.threads=1",
    "tracking.uri=none",
)


EFFORT = "hardware.stages.local_latency.effort"
LESS = {
    "validate": (
        f"{EFFORT}.configurations=12", f"{EFFORT}.held_out=6", f"{EFFORT}.repeats=1", f"{EFFORT}.bootstraps=100",
        'stages.validate.real={local: ["${stage:local_1}"], grpc: ["${stage:grpc_1}"]}',
    ),
    "paced": ('stages.paced.real={grpc: ["${stage:grpc_1}"]}', "workload.devices=1", "workload.max_new_tokens=12"),
}  # fmt: skip
"""What makes an experiment smaller still."""
SAID = {
    "validate": ("simulated against local", "6 of 6 requests have the same text"),
    "paced": ("simulated against grpc", "6 of 6 requests have the same text"),
}


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the processes of one test run, which build the toy pair once."""
    return tmp_path_factory.getbasetemp().parent / "experiments"


@pytest.mark.parametrize("name", NAMES)
def test_experiments_compose(name: str) -> None:
    with api.composed(f"experiment={name}") as cfg:
        assert "serve" in cfg.stages


@pytest.mark.parametrize("name", NAMES)
def test_experiments_run_at_toy_size(name: str, outputs: Path) -> None:
    command = [sys.executable, "-m", "pipeline", f"+experiment={name}", *TOY, *LESS.get(name, ()), f"outputs={outputs}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    for said in SAID.get(name, ("jobs complete", "comparison.csv")):
        assert said in done.stdout


@pytest.mark.parametrize("word", ["policy=sled", "+policy=sled"])
def test_a_policy_beside_an_experiment_replaces_its_own(word: str) -> None:
    with api.composed("experiment=synera/budget", word) as cfg:
        assert cfg.policy.name == "sled"
