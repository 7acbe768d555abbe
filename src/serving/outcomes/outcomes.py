"""What a simulation asks of those who know the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.core.decoding import Decoding
from serving.deployment.queries import Models, Query
from serving.policy.policy import Policy
from serving.workload.workload import Asked


@dataclass(frozen=True)
class Opened(Models):
    """Two engines that look outcomes up instead of computing them."""


class Outcomes(Protocol):
    """A source of token outcomes: `trace`, `fitted`, `constant`."""

    @property
    def described(self) -> str:
        """Where the tokens come from, for the report."""
        ...

    @property
    def is_text(self) -> bool:
        """Do the tokens stand for words, so that answers can be judged?"""
        ...

    def queries(self, asked: Sequence[Asked], decoding: Decoding, seed: int) -> list[Query]:
        """The workload's requests in this source's tokens; raises ValueError for decoding that it does not know."""
        ...

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> Opened:
        """Engines for these requests under this policy; raises ValueError for a request that it does not know."""
        ...
