"""Medusa heads as an artifact: what they propose, and where their weights lie (Medusa-1, Cai et al. 2024)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

HEADER, WEIGHTS = "medusa.json", "medusa.safetensors"
CandidateRanks = tuple[int, ...]
"""A candidate: which of each head's likeliest tokens lead to it, the first head's first, counted from 0."""


@dataclass(frozen=True)
class MedusaHeads:
    """`num_heads` heads, and a tree of candidates of which one verification decides.

    Raises ValueError for a tree that names a head that there is not, or a candidate before its parent.
    """

    num_heads: int
    tree: tuple[CandidateRanks, ...]
    num_parameters: int
    folder: str = ""
    """Where the weights lie; "" while they are being trained."""
    acceptance_length: float = 0.0
    """Tokens a round when they were served on prompts that they were not trained on, the target's own included."""
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
        """Both ends of a link must agree on it, and a folder's path is each one's own."""
        return f"{self.num_heads} medusa heads, tree {self.tree!r}"

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Of each candidate its parent's index; -1: the last agreed token."""
        return parents_of(self.tree)

    @property
    def top_k(self) -> int:
        """How many of a head's likeliest tokens the tree looks at, at most."""
        return 1 + max((ranks[-1] for ranks in self.tree), default=0)

    def propose(self, top_candidates: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The candidates' tokens, from each head's likeliest ones."""
        return tuple(top_candidates[len(ranks) - 1][ranks[-1]] for ranks in self.tree)

    def save(self, folder: Path) -> None:
        header = {name: value for name, value in asdict(self).items() if name != "folder"}
        (folder / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def parents_of(tree: Sequence[CandidateRanks]) -> tuple[int, ...]:
    """Of each candidate of a tree its parent's index, -1 for those that follow the last agreed token."""
    at = {ranks: i for i, ranks in enumerate(tree)}
    return tuple(at.get(ranks[:-1], -1) for ranks in tree)


def load(path: Path) -> MedusaHeads:
    """Reads what the stage `training.hat.stages.train_medusa` wrote.

    Raises ValueError that names the file when it is missing, cut off, or not of this form.
    """
    file = path / HEADER
    try:
        header = json.loads(file.read_text(encoding="utf-8"))
        tree = tuple(tuple(ranks) for ranks in header.pop("tree"))
        return MedusaHeads(tree=tree, folder=str(path), **header)
    except OSError:
        raise ValueError(f"there is no {file}; policy.draft.medusa names a folder that stage=train made") from None
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise ValueError(f"medusa heads {file} cannot be read ({problem!r}); train again with stage=train") from None
