"""What drafting does when it is served: acceptance, tokens and waste a round, with and without a predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.messages import Chunk
from training.wisp.windows import Floats, Ints

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Tally:
    """Of each of n sessions, all shapes (n,)."""

    rounds: Ints
    drafted: Ints
    accepted: Ints

    def figures(self, picked: Ints) -> dict[str, Floats]:
        """Means over the rounds of the picked sessions, (..., n) indices of them: shape (...)."""
        rounds, drafted, accepted = (each[picked].sum(-1) for each in (self.rounds, self.drafted, self.accepted))
        return {
            "acceptance": accepted / drafted,
            "tokens_a_round": accepted / rounds + 1,
            "drafts_a_round": drafted / rounds,
            "wasted_a_round": (drafted - accepted) / rounds,
        }


def tally(sessions: Sequence[Sequence[Chunk]]) -> Tally:
    """Of each session's judged windows; a round's tokens are the accepted ones and the target's own."""
    windows = [[chunk for chunk in session if chunk.tokens] for session in sessions]
    return Tally(
        np.array([len(chunks) for chunks in windows], np.int64),
        np.array([sum(len(chunk.tokens) for chunk in chunks) for chunks in windows], np.int64),
        np.array([sum(chunk.accepted or 0 for chunk in chunks) for chunks in windows], np.int64),
    )


def compare(without: Tally, with_it: Tally, seed: int) -> dict[str, Any]:
    """Per figure: without, with, ratio, each as [value, low, high]; sessions are resampled, the same for both.

    Percentile intervals of 95 % (Efron and Tibshirani 1993, chapter 13). Raises ValueError where nothing was drafted.
    """
    n = len(without.rounds)
    if not without.rounds.sum() or not with_it.rounds.sum():
        raise ValueError("not one draft was made on the held-out prompts; raise workload.profiling.prompts")
    picked = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    picked = picked[(without.rounds[picked].sum(-1) > 0) & (with_it.rounds[picked].sum(-1) > 0)]
    everyone = np.arange(n)
    found: dict[str, Any] = {"sessions": n}
    for name in without.figures(everyone):
        pairs = [(tally.figures(everyone)[name], tally.figures(picked)[name]) for tally in (without, with_it)]
        found[name] = {
            "without": _interval(*pairs[0]),
            "with": _interval(*pairs[1]),
            "ratio": _interval(*(_ratio(pairs[1][i], pairs[0][i]) for i in range(2))),
        }
    return found


def _ratio(one: Floats, other: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(other > 0, one / other, np.nan))


def _interval(value: Any, resampled: Floats) -> list[float | None]:
    known = resampled[np.isfinite(resampled)]
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(known) else (np.nan, np.nan)
    return [float(each) if np.isfinite(each) else None for each in (value, low, high)]
