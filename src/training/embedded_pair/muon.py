"""Muon for matrices and AdamW for the rest, as one optimiser, so that a trainer can save and restore it as one."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_BETAS, _EPSILON = (0.9, 0.95), 1e-8


def orthogonalise(gradients: Tensor, dtype: torch.dtype, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices, roughly, of a stack (n, rows, columns); products are in `dtype`, for which bf16
    is enough.

    Newton-Schulz iteration of Jordan et al., Muon: An optimizer for hidden layers in neural networks (2024).
    """
    a, b, c = _NEWTON_SCHULZ
    tall = gradients.shape[-2] > gradients.shape[-1]
    x = (gradients.mT if tall else gradients).to(dtype)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    turned: Tensor = (x.mT if tall else x).to(gradients.dtype)
    return turned


class Muon(Optimizer):
    """Orthogonalised momentum for `matrices` (each (..., rows, columns)), AdamW without decay for `others`.

    Args:
        dtype: of the products that orthogonalise. In bf16 a CPU with AVX2 alone takes 100 times as long as in fp32.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        others: Iterable[Tensor],
        *,
        matrix_lr: float,
        lr: float,
        dtype: torch.dtype,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        matrix_group = {"params": list(matrices), "lr": matrix_lr, "momentum": momentum, "weight_decay": weight_decay}
        self._dtype = dtype
        super().__init__([{**matrix_group, "muon": True}, {"params": list(others), "lr": lr, "muon": False}], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            (self._muon if group["muon"] else self._adamw)(group)
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        shrink = 1 - group["lr"] * group["weight_decay"]
        for members in _by_shape(group["params"]).values():
            updates = [self._nesterov_update(weight, group["momentum"]).flatten(0, -3) for weight in members]
            rows, columns = members[0].shape[-2:]
            turned = torch.split(orthogonalise(torch.cat(updates), self._dtype), [len(update) for update in updates])
            for weight, update in zip(members, turned, strict=True):
                weight.mul_(shrink).add_(update.view_as(weight), alpha=-group["lr"] * max(1, rows / columns) ** 0.5)

    def _nesterov_update(self, weight: Tensor, momentum: float) -> Tensor:
        """Nesterov momentum; (n, rows, columns)."""
        assert weight.grad is not None
        average = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
        average.lerp_(weight.grad, 1 - momentum)
        ahead = weight.grad.lerp(average, momentum)
        return ahead if ahead.dim() > 2 else ahead[None]

    def _adamw(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        states = [self._moments(weight) for weight in weights]
        adamw(
            weights,
            [weight.grad for weight in weights],
            [state["mean"] for state in states],
            [state["square"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=group["lr"],
            weight_decay=0.0,
            eps=_EPSILON,
            maximize=False,
        )

    def _moments(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state |= {"step": torch.zeros(()), "mean": torch.zeros_like(weight), "square": torch.zeros_like(weight)}
        return state


def _by_shape(weights: Iterable[Tensor]) -> dict[torch.Size, list[Tensor]]:
    """Weights whose matrices have one shape, so that one batched product serves them all."""
    groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
    for weight in weights:
        if weight.grad is not None:
            groups[weight.shape[-2:]].append(weight)
    return groups
