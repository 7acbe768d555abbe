"""Outcomes from a model of acceptance that was fitted to a trace.

Lengths of prompts that a paper states by a few figures.

Scores and exits resampled from a trace, jointly with whether the draft was right.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar

from serving.core.decoding import Decoding
from serving.core.keyed_random import key, luck
from serving.core.scores import ROUTE, SCORES, Scorers
from serving.deployment.queries import Query
from serving.learned.medusa import Ranks
from serving.messages import Exit
from serving.outcomes.constant import drawn, numbered
from serving.outcomes.lookup import column_means
from serving.outcomes.outcomes import Opened, check_exit
from serving.outcomes.replayed import check_router, check_tree
from serving.outcomes.sampled_engine import Chances, Rights
from serving.outcomes.trace import triangle
from serving.policy.policy import Policy
from serving.workload.workload import Asked


@dataclass(frozen=True)
class Lengths:
    """Log-normal, by mean and standard deviation in tokens: of the figures of HAT's Table 3 the P90 follows.

    Raises ValueError for a mean or deviation that is not above 0.
    """

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        for name in ("mean", "deviation"):
            if not getattr(self, name) > 0:
                raise ValueError(f"prompts.{name} is {getattr(self, name)}; it is a number of tokens above 0")

    def drawn(self, luck: float) -> int:
        """The length below which the share `luck`, of [0, 1), of all prompts lie; at least one token."""
        spread = log(1 + (self.deviation / self.mean) ** 2)
        middle = log(self.mean) - spread / 2
        return max(1, round(exp(middle + sqrt(spread) * NormalDist().inv_cdf(min(max(luck, 1e-9), 1 - 1e-9)))))


KINDS = ("wrong_after_wrong", "right_after_wrong", "wrong_after_right", "right_after_right", "behind_a_wrong_one")
BEHIND = KINDS.index("behind_a_wrong_one")
RANK, LAYERS = len(SCORES), len(SCORES) + 1
WIDTH = LAYERS + 1


@dataclass(frozen=True)
class Pools:
    """Recorded rows to draw from: per kind of draft its four scores, the rank of the target's token among the
    drafter's candidates, and after how many layers it was read off; and the attention of whole drafts.

    A draft's importance is another recorded draft's, drawn where it begins: how attention falls within a draft is kept,
    its tie to right and wrong is not.
    """

    rows: tuple[tuple[tuple[float, ...], ...], ...]
    attention: tuple[tuple[float, ...], ...]
    depth: int
    stems: tuple[int, ...] = ()
    """Of trees that the target's heads proposed, the last candidate that the target went on to write; -1: none."""
    trained: tuple[str, ...] = ()
    """Scores that were told from the others, or recorded of a router, in columns of their own."""

    def with_scores(self, scorers: Scorers) -> "Pools":
        """The same with trained scores."""
        import numpy as np

        rows = self.rows
        told = {name: scorer for name, scorer in scorers.items() if name not in self.trained}
        for scorer in told.values():
            found = [scorer.chances(np.array([row[: len(SCORES)] for row in kind])).tolist() for kind in rows]
            rows = tuple(
                tuple((*row, chance) for row, chance in zip(kind, chances, strict=True))
                for kind, chances in zip(rows, found, strict=True)
            )
        return replace(self, rows=rows, trained=(*self.trained, *told))

    def score(self, rights: Rights, at: int, i: int, run: int, name: str) -> float:
        column = WIDTH + self.trained.index(name) if name in self.trained else SCORES.index(name)
        return self._row(rights, at, i, run)[column]

    def rank(self, rights: Rights, at: int, i: int, run: int) -> int:
        return int(self._row(rights, at, i, run)[RANK])

    def layers(self, rights: Rights, at: int, i: int, run: int) -> int:
        return int(self._row(rights, at, i, run)[LAYERS])

    def importance(self, rights: Rights, at: int, n: int) -> tuple[float, ...]:
        if not n:
            return ()
        row = _one_of(self.attention, rights, at, "attention")
        values = column_means(row, 0, min(n, self.depth))
        return (*values, *values[-1:] * (n - self.depth))

    def stem(self, rights: Rights, at: int) -> int:
        """The last candidate that is right of the tree which is proposed beside token `at`."""
        return self.stems[int(luck(rights.stream, at, "tree") * len(self.stems))]

    def _row(self, rights: Rights, at: int, i: int, run: int) -> tuple[float, ...]:
        if i > run:
            return _one_of(self.rows[BEHIND], rights, at + i, "scores behind")
        before = 1 if i else rights.before(at)
        return _one_of(self.rows[2 * before + (i < run)], rights, at + i, "scores")


def _one_of(pool: Sequence[tuple[float, ...]], rights: Rights, position: int, purpose: str) -> tuple[float, ...]:
    return pool[int(luck(rights.stream, position, purpose) * len(pool))]


HEADER, TENSORS, STEMS = "fitted.json", "pools.safetensors", "stems"


@dataclass(frozen=True)
class Fitted:
    """Whether a draft is right depends on whether the one before was; scores, and after how many layers a draft is read
    off, are resampled from the trace.

    Raises ValueError for chances that are none, or pools with nothing in them.
    """

    chances: Chances
    pools: Pools
    lengths: tuple[tuple[int, int, bool], ...]
    """Of each recorded session: prompt tokens, tokens written, and whether it ended before its limit."""
    layers: tuple[int, int]
    """Of the device's and the cloud's model."""
    made_from: dict[str, str]
    goodness: dict[str, Any]
    """The trace's figures beside the model's: see `serving.outcomes.fit`."""
    exit: Exit | None = None
    """The rule by which the recorded drafts left layers early; None: they ran all."""
    tree: tuple[Ranks, ...] = ()
    """That the target's heads proposed; (): it has no heads."""
    prompts: Lengths | None = None
    """Other lengths of prompts than the recorded ones."""
    whole_answers: bool = False
    """Is every answer as long as the workload allows?"""
    router: str = ""
    """The digest of the router whose scores were recorded; "": none were."""
    is_text: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.lengths or not all((*self.pools.rows, self.pools.attention)):
            raise ValueError("a fitted model of acceptance needs recorded lengths, and scores for every kind of draft")

    @property
    def described(self) -> str:
        rate = self.goodness["rate"]["trace"]
        return (
            f"no models and no text: drafts are right as in a trace of {self.made_from.get('pair', 'a pair')} "
            f"(acceptance {rate:.3f}), a Markov chain of order 1 with resampled scores"
        )

    def queries(self, asked: Sequence[Asked], decoding: Decoding, seed: int) -> list[Query]:
        """The requests with the lengths of recorded sessions, dealt by luck."""
        return list(numbered(asked, decoding, seed, [self._lengths(one, seed) for one in asked]))

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> Opened:
        """Engines that draw outcomes. Raises ValueError for a policy whose drafts leave early by another rule."""
        check_exit(self.exit, policy, "the trace that acceptance was fitted to")
        check_tree(self.tree, policy.draft.medusa)
        check_router(self.router, policy)
        pools = self.pools.with_scores(policy.scorers)
        return drawn(queries, self.layers, self.chances, pools, policy, seed, self.exit)

    def _lengths(self, asked: Asked, seed: int) -> tuple[int, int]:
        draw = luck(key(seed, f"r{asked.index:05d}"), 0, "recorded session")
        prompt, written, ended = self.lengths[int(draw * len(self.lengths))]
        if self.prompts:
            prompt = min(
                asked.max_prompt_tokens, self.prompts.drawn(luck(key(seed, f"r{asked.index:05d}"), 0, "prompt"))
            )
        if self.whole_answers:
            return prompt, asked.max_new_tokens
        return prompt, min(asked.max_new_tokens, written) if ended else asked.max_new_tokens


def save(out: Path, fitted: Fitted) -> None:
    """Writes the model into a folder."""
    import numpy as np
    from safetensors.numpy import save_file

    pools = dict(zip(KINDS, fitted.pools.rows, strict=True)) | {"attention": fitted.pools.attention}
    if fitted.pools.stems:
        pools[STEMS] = tuple((stem,) for stem in fitted.pools.stems)
    save_file({name: np.array(rows, np.float32) for name, rows in pools.items()}, out / TENSORS)
    about = {
        "chances": asdict(fitted.chances), "depth": fitted.pools.depth, "layers": fitted.layers,
        "made_from": fitted.made_from, "goodness": fitted.goodness, "lengths": fitted.lengths,
        "exit": asdict(fitted.exit) if fitted.exit else None, "tree": fitted.tree,
        "router": fitted.router,
    }  # fmt: skip
    (out / HEADER).write_text(json.dumps(about, indent=1), encoding="utf-8")


def load(path: Path, prompts: Lengths | None = None, whole_answers: bool = False) -> Fitted:
    """Reads what the stage `serving.stages.fit_outcomes` wrote.

    `prompts` are other lengths of prompts than the recorded ones; with `whole_answers` all answers are as long as the
    workload allows. Raises ValueError that names the folder when it is missing, cut off or inconsistent.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        about = json.loads((path / HEADER).read_text(encoding="utf-8"))
        fitted = _parsed(about, load_file(path / TENSORS))
    except OSError:
        raise ValueError(
            f"there is no fitted acceptance in {path}; runtime.outcomes.path names a folder that stage=fit_outcomes "
            "made"
        ) from None
    except (ValueError, KeyError, TypeError, IndexError, SafetensorError) as problem:
        raise ValueError(f"fitted acceptance {path} cannot be read ({problem!r}); fit it again") from None
    return replace(fitted, prompts=prompts, whole_answers=whole_answers)


def _parsed(about: dict[str, Any], arrays: dict[str, Any]) -> Fitted:
    depth = about["depth"]
    for name, array in arrays.items():
        width = triangle(depth) if name == "attention" else 1 if name == STEMS else WIDTH + bool(about["router"])
        if array.ndim != 2 or array.shape[1] != width:
            raise ValueError(f"{name} has the shape {array.shape}; its rows have {width} numbers")
    rows = {name: tuple(map(tuple, array.tolist())) for name, array in arrays.items()}
    stems = tuple(int(stem) for (stem,) in rows.get(STEMS, ()))
    trained = (ROUTE,) if about["router"] else ()
    return Fitted(
        Chances(**about["chances"]),
        Pools(tuple(rows[kind] for kind in KINDS), rows["attention"], depth, stems, trained),
        tuple((prompt, written, ended) for prompt, written, ended in about["lengths"]),
        (about["layers"][0], about["layers"][1]),
        about["made_from"],
        about["goodness"],
        Exit(**about["exit"]) if about["exit"] else None,
        tuple(tuple(ranks) for ranks in about["tree"]),
        router=about["router"],
    )
