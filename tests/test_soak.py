"""The soak for one minute, with real processes and engines."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_models import save_checkpoint

WORDS = " ".join(f"w{i}" for i in range(510))
"""The soak's prompts are of the first 500 tokens."""
NOISE = 0.2
"""Relative to the weights: the device's model then writes about two in three of the cloud's tokens."""

pytestmark = pytest.mark.slow


def like(cloud: Path, path: Path) -> Path:
    """A checkpoint with the same weights but for some noise, so that some drafts are accepted and some are not."""
    import torch
    from transformers import LlamaForCausalLM

    save_checkpoint(path, WORDS)
    model = LlamaForCausalLM.from_pretrained(cloud)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for weights in model.parameters():
            if weights.dim() > 1:
                weights += NOISE * weights.std() * torch.randn_like(weights)
    model.save_pretrained(path)
    return path


def test_in_a_minute_of_faults_every_request_is_answered_and_nothing_is_left(tmp_path: Path) -> None:
    cloud = save_checkpoint(tmp_path / "cloud", WORDS, layers=8, seed=1)
    device = like(cloud, tmp_path / "device")
    command = [sys.executable, "-m", "benchmarks", "soak", "seconds=60", "every=2", f"pair={device},{cloud}"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", unanswered 0\n" in done.stdout
    assert "  left      0 in " in done.stdout
