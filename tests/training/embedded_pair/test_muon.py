from __future__ import annotations

import pytest
import torch

from training.embedded_pair.muon import Muon, orthogonalise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_singular_values_come_near_one(dtype: torch.dtype) -> None:
    stack = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(0))
    for each in (stack, stack.mT):
        values = torch.linalg.svdvals(orthogonalise(each, dtype).float())
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_matrices_and_vectors_are_both_updated() -> None:
    draw = torch.Generator().manual_seed(0)
    matrix, bias = torch.zeros(2, 8, 6, requires_grad=True), torch.zeros(8, requires_grad=True)
    wanted, inputs = torch.randn(2, 8, 6, generator=draw), torch.randn(50, 6, generator=draw)
    optimizer = Muon([matrix], [bias], matrix_lr=0.05, lr=0.05, dtype=torch.float32)
    losses = []
    for _ in range(150):
        loss = ((inputs @ (matrix - wanted).mT + bias - 1) ** 2).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.05 * losses[0]
    assert (bias - 1).abs().max() < 0.3


def test_weights_without_a_gradient_are_not_changed() -> None:
    matrix, bias = torch.ones(4, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    Muon([matrix], [bias], matrix_lr=0.1, lr=0.1, dtype=torch.float32).step()
    assert torch.equal(matrix, torch.ones(4, 4))
    assert torch.equal(bias, torch.ones(4))
