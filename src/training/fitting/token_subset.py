"""Tokens of a large vocabulary that a loss is over, and their rows of the head."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class TokenSubset:
    """`n` different tokens of a vocabulary of `vocab_size`, in ascending order."""

    tokens: Tensor
    """(n)"""
    vocab_size: int

    @cached_property
    def places(self) -> Tensor:
        """(vocab_size): the place of each token in the subset, -1 for the others."""
        places = torch.full((self.vocab_size,), -1)
        places[self.tokens] = torch.arange(len(self.tokens))
        return places

    def head(self, whole: nn.Module) -> nn.Linear:
        """A frozen copy of a linear head, with these tokens' rows alone."""
        weight: Any = whole.weight
        found = nn.Linear(weight.shape[1], len(self.tokens), bias=False, dtype=weight.dtype)
        found.weight = nn.Parameter(weight[self.tokens].detach().clone(), requires_grad=False)
        return found
