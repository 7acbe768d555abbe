"""Medusa heads as an artifact: the tree that they propose, and where their weights lie (Medusa-1, Cai et al. 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from serving.learned.artifact import ArtifactFormat

HEADER, WEIGHTS = "medusa.json", "medusa.safetensors"
FORMAT = ArtifactFormat("medusa heads", HEADER, WEIGHTS, "policy.draft.medusa")
CandidateRanks = tuple[int, ...]
"""The path to a candidate: per head, first head first, the rank of its token (0: the likeliest)."""


@dataclass(frozen=True)
class MedusaHeads:
    """`num_heads` heads, and the tree of candidates that one verification checks.

    Raises ValueError for a candidate deeper than `num_heads`, or one before its parent.
    """

    num_heads: int
    tree: tuple[CandidateRanks, ...]
    num_parameters: int
    folder: str = ""
    """The folder of the weights; "" during training."""
    acceptance_length: float = 0.0
    """Tokens a verification, the target's own included, when served on prompts outside the training set."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known: set[CandidateRanks] = {()}
        for ranks in self.tree:
            if not 1 <= len(ranks) <= self.num_heads or ranks[:-1] not in known or ranks in known or min(ranks) < 0:
                raise ValueError(
                    f"candidate {list(ranks)} of a tree for {self.num_heads} heads has no parent before it"
                )
            known.add(ranks)

    def __repr__(self) -> str:
        """Without `folder`, which may differ between the ends of a link; both ends must agree on the rest."""
        return f"{self.num_heads} medusa heads, tree {self.tree!r}"

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Per candidate the index of its parent; -1: the last agreed token."""
        return parents_of(self.tree)

    @property
    def top_k(self) -> int:
        """The most tokens of one head that the tree uses."""
        return 1 + max((ranks[-1] for ranks in self.tree), default=0)

    def propose(self, top_candidates: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The candidates' tokens; `top_candidates` are each head's tokens, the likeliest first."""
        return tuple(top_candidates[len(ranks) - 1][ranks[-1]] for ranks in self.tree)

    def save(self, folder: Path) -> None:
        FORMAT.save(folder, {name: value for name, value in asdict(self).items() if name != "folder"})


def parents_of(tree: Sequence[CandidateRanks]) -> tuple[int, ...]:
    """Per candidate of a tree the index of its parent; -1: the last agreed token."""
    index = {ranks: i for i, ranks in enumerate(tree)}
    return tuple(index.get(ranks[:-1], -1) for ranks in tree)


def load(path: Path) -> MedusaHeads:
    """Reads the header that the stage `training.hat.stages.train_medusa` wrote.

    Raises ValueError that names the file when it is missing, cut off, or not of this form.
    """
    header = FORMAT.read_header(path)
    with FORMAT.parsing(path):
        tree = tuple(tuple(ranks) for ranks in header.pop("tree"))
        return MedusaHeads(tree=tree, folder=str(path), **header)
