"""The linear probe learns on the device that it is given, and draws the same batches there."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.privacy.inversion_probe import LinearProbe, _train_probe

BRIEF = LinearProbe(steps=20, batch_size=8, learning_rate=0.05)
TOKENS = torch.arange(60) % 4
STATES = functional.one_hot(TOKENS, 6).float() + 0.1 * torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
LEARNED = torch.arange(40)


def trained_plainly(probe: LinearProbe) -> Tensor:
    """The predictions of a probe that is trained without a word of devices."""
    generator = torch.Generator().manual_seed(probe.seed)
    mean, deviation = STATES[LEARNED].mean(0), STATES[LEARNED].std(0).clamp_min(1e-6)
    linear = nn.Linear(6, 4)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    optimizer = torch.optim.AdamW(linear.parameters(), lr=probe.learning_rate)
    for _ in range(probe.steps):
        at = LEARNED[torch.randint(len(LEARNED), (probe.batch_size,), generator=generator)]
        optimizer.zero_grad()
        functional.cross_entropy(linear((STATES[at] - mean) / deviation), TOKENS[at]).backward()
        optimizer.step()
    with torch.no_grad():
        return linear((STATES - mean) / deviation).argmax(-1)


def test_on_the_cpu_the_probe_is_what_it_was() -> None:
    few = LinearProbe(steps=2, batch_size=4, learning_rate=0.05)
    for probe in (few, BRIEF):
        predicted = _train_probe(STATES, TOKENS, LEARNED, 4, probe, "cpu")(STATES)
        assert predicted.equal(trained_plainly(probe))
    assert predicted.equal(TOKENS)


def test_the_probe_learns_and_predicts_on_its_device() -> None:
    """`meta` computes shapes alone, so that there is nothing to bring back."""
    predict = _train_probe(STATES, TOKENS, LEARNED, 4, BRIEF, "meta")
    with pytest.raises(NotImplementedError, match="meta tensor"):
        predict(STATES)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_probe_predicts_the_same() -> None:
    predicted = _train_probe(STATES, TOKENS, LEARNED, 4, BRIEF, "cuda")(STATES)
    assert predicted.equal(TOKENS)
