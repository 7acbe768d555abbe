"""Every experiment of conf/ composes, and runs at toy size; a policy on the command line wins."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline import api

RUNNER = Path(__file__).with_name("experimenting.py")
CONF = Path(__file__).parents[1] / "conf" / "experiment"
NAMES = sorted(str(file.relative_to(CONF).with_suffix("")) for file in CONF.rglob("*.yaml"))
QUANTISED = "synera/table6"
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
    "synera/table4": ("training.seed=0", "+pair=1b_13b", "+method=edgefm,hybrid"),
    "synera/table5": ("training.seed=0", "+method=edge,edge_exit"),
    "synera/table6": ("training.seed=0", "+method=edge", "model.device.quantization=none,nf4"),
    "synera/fig11": ("+pair=1b_13b_15w", "+method=edge,no_pi"),
    "synera/fig12": ("training.seed=0", "+pair=1b_13b", "+method=synera,cloud"),
    "synera/fig13": ("network=mbps_0_1", "+method=synera,no_compression"),
    "synera/fig14": ("training.seed=0", "policy.offload.budget=0,0.2"),
    "synera/fig16": ("training.seed=0", "policy.offload.budget=0.2", "+method=importance,random"),
    "synera/fig17": ("training.seed=0", "policy.early_exit.margin=0.7,1.0"),
    "synera/fig18": ("policy.offload.budget=0.2,0.8",),
    "synera/fig15": ("policy.offload.budget=0.3", "workload.arrivals.rate_per_s=1,80"),
    "synera/stalls": ("policy.offload.budget=0.2", "+strain=kbps_50,verify_400ms", "+method=plain"),
    "synera/parallel": ("training.seed=0", "policy.offload.budget=0.2", "+ahead=parallel,printed"),
    "synera/exits": ("training.seed=0", "+pair=1b_13b", "+exit=none,half_once"),
    "synera/frontier": ("training.seed=0", "+pair=1b_13b", "policy.offload.budget=0.1", "+method=edgefm,synera"),
    "paced": ('stages.paced.real={grpc: ["${stage:grpc_1}"]}', "workload.devices=1", "workload.max_new_tokens=12"),
}  # fmt: skip
"""What makes an experiment smaller still."""
SAID = {
    "synera/fig4": ("Synera, Fig. 4 and 5b", "importance of drafts"),
    "synera/table3": ("Synera, Table 3", "llama_160m"),
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


@pytest.mark.parametrize("part", [0, 1])
def test_experiments_run_at_toy_size(part: int, outputs: Path, tmp_path: Path) -> None:
    """Every second one in one process."""
    run([name for name in NAMES if name != QUANTISED][part::2], outputs, tmp_path)


def test_the_experiment_on_quantised_models_runs_at_toy_size(outputs: Path, tmp_path: Path) -> None:
    if not find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is not installed: pip install -e '.[quantization]'")
    run([QUANTISED], outputs, tmp_path)


def run(names: list[str], outputs: Path, folder: Path) -> None:
    commands = [[f"+experiment={name}", *TOY, *LESS.get(name, ()), f"outputs={outputs}"] for name in names]
    (folder / "commands.json").write_text(json.dumps(commands), encoding="utf-8")
    command = [sys.executable, str(RUNNER), str(folder / "commands.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    printed = re.split(r"^ended (\d+)$", done.stdout, flags=re.MULTILINE)
    assert printed[1::2] == ["0"] * len(names), done.stderr
    for name, text in zip(names, printed[::2], strict=False):
        for said in SAID.get(name, ("jobs complete", "comparison.csv")):
            assert said in text, name


@pytest.mark.parametrize("word", ["policy=sled", "+policy=sled"])
def test_a_policy_beside_an_experiment_replaces_its_own(word: str) -> None:
    with api.composed("experiment=synera/fig14", word) as cfg:
        assert cfg.policy.name == "sled"
