"""What drafting does when it is served: acceptance, tokens and waste a round, with and without a predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.messages import DraftDecision
from training.wisp.windows import Floats, Ints

RESAMPLES = 2000
CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class DraftCounts:
    """Of each of n sessions, all shapes (n,)."""

    rounds: Ints
    drafted: Ints
    accepted: Ints

    def rates(self, session_indices: Ints) -> dict[str, Floats]:
        """Means over the rounds of the picked sessions, (..., n) indices of them: shape (...)."""
        rounds, drafted, accepted = (
            each[session_indices].sum(-1) for each in (self.rounds, self.drafted, self.accepted)
        )
        return {
            "acceptance_rate": accepted / drafted,
            "tokens_per_round": accepted / rounds + 1,
            "drafts_per_round": drafted / rounds,
            "wasted_per_round": (drafted - accepted) / rounds,
        }


def count_drafts(sessions: Sequence[Sequence[DraftDecision]]) -> DraftCounts:
    """Of each session's judged windows; a round's tokens are the accepted ones and the target's own."""
    windows = [[chunk for chunk in session if chunk.tokens] for session in sessions]
    return DraftCounts(
        np.array([len(chunks) for chunks in windows], np.int64),
        np.array([sum(len(chunk.tokens) for chunk in chunks) for chunks in windows], np.int64),
        np.array([sum(chunk.accepted or 0 for chunk in chunks) for chunks in windows], np.int64),
    )


def compare(baseline: DraftCounts, with_predictor: DraftCounts, seed: int) -> dict[str, Any]:
    """Per figure: without, with, ratio, each as [value, low, high]; sessions are resampled, the same for both.

    Percentile intervals of 95 % (Efron and Tibshirani 1993, chapter 13). Raises ValueError where nothing was drafted.
    """
    n = len(baseline.rounds)
    if not baseline.rounds.sum() or not with_predictor.rounds.sum():
        raise ValueError("not one draft was made on the held-out prompts; raise workload.profiling.num_prompts")
    picked = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    picked = picked[(baseline.rounds[picked].sum(-1) > 0) & (with_predictor.rounds[picked].sum(-1) > 0)]
    everyone = np.arange(n)
    found: dict[str, Any] = {"sessions": n}
    for name in baseline.rates(everyone):
        pairs = [(tally.rates(everyone)[name], tally.rates(picked)[name]) for tally in (baseline, with_predictor)]
        found[name] = {
            "without": _interval(*pairs[0]),
            "with": _interval(*pairs[1]),
            "ratio": _interval(*(_ratio(pairs[1][i], pairs[0][i]) for i in range(2))),
        }
    return found


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(denominator > 0, numerator / denominator, np.nan))


def _interval(value: Any, resampled: Floats) -> list[float | None]:
    known = resampled[np.isfinite(resampled)]
    low, high = (
        np.quantile(known, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2]) if len(known) else (np.nan, np.nan)
    )
    return [float(each) if np.isfinite(each) else None for each in (value, low, high)]
