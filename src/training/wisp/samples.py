"""Token samples of served windows: the drafter's scores of a token and whether it was accepted; and statistics of
them as rows of WISP's Table 8, Fig. 2 and Fig. 3, `{group: {row: {metric: cell}}}`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.core.scores import LOGIT_SCORES
from training.fitting.cluster_statistics import ClusterValues, clustered_ratio
from training.fitting.held_out import Split, random_splits
from training.wisp import trace
from training.wisp.trace import DraftWindows, Flags, Floats, Ints, Names

SPLIT_SHARES = (0.70, 0.15, 0.15)
"""Shares of the sessions: training, validation, test."""


@dataclass(frozen=True, eq=False)
class TokenSamples:
    """`n` tokens up to the first rejected one of their windows (WISP, appendix B), and the whole windows, for waste."""

    features: NDArray[np.float32]
    """(n, 4), in the order of `serving.core.scores.LOGIT_SCORES`."""
    accepted: Flags
    """(n,) True if the token was accepted; else it is the first rejected one of its window."""
    session: Names
    """(n,)"""
    windows: DraftWindows

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def sessions(self) -> Names:
        """Each session once, in order."""
        return np.unique(self.windows.session)

    def for_sessions(self, sessions: Names) -> "TokenSamples":
        """The samples of these sessions."""
        kept = np.isin(self.session, sessions)
        return TokenSamples(
            self.features[kept], self.accepted[kept], self.session[kept], self.windows.for_sessions(sessions)
        )

    def split(self, seed: int) -> "Split[TokenSamples]":
        """Random split by session, so that no answer is in two parts; the first that has tokens of both kinds in each.

        Kinds: accepted, rejected. Raises ValueError if none of the splits that are tried has them, as with fewer than
        three sessions.
        """
        sessions = self.sessions
        for drawn in random_splits(sessions.tolist(), SPLIT_SHARES, seed):
            parts = [self.for_sessions(np.array(names)) for names in drawn]
            if all(part.accepted.any() and not part.accepted.all() for part in parts):
                break
        else:
            raise ValueError(
                f"{len(self)} tokens of {len(sessions)} sessions, {int(self.accepted.sum())} of them accepted, cannot "
                "be split into training, validation and test with accepted and rejected tokens in each; raise "
                "workload.profiling.num_prompts, or change the pair"
            )
        return Split(*parts)


SampleSplit: TypeAlias = Split[TokenSamples]
"""Three sets of samples that share no session."""


def load_samples(path: Path) -> TokenSamples:
    """The samples of a token trace. Raises ValueError that names a missing or damaged file."""
    tokens = trace.read(path)
    before = tokens.outcome != trace.AFTER_REJECTION
    return TokenSamples(tokens.features[before], tokens.outcome[before] == trace.ACCEPTED, tokens.session[before],
                   tokens.windows())  # fmt: skip


BINS = 10
SampleStatistic = Literal["counts", "acceptance", "correlation"]
MetricRow = dict[str, ClusterValues | float]


def statistic_rows(samples: TokenSamples, statistic: SampleStatistic) -> dict[str, dict[str, MetricRow]]:
    """counts: tokens of both classes; acceptance: rate by deciles of each score; correlation: Pearson's r of each score
    with acceptance.
    """
    if statistic == "counts":
        return {"sample": _counts(samples)}
    if statistic == "correlation":
        return {"correlation": _correlations(samples)}
    return {name: _by_decile(samples, i) for i, name in enumerate(LOGIT_SCORES)}


def _counts(samples: TokenSamples) -> dict[str, MetricRow]:
    everything = np.ones(len(samples), np.bool_)
    kinds = {"total": everything, "accepted": samples.accepted, "rejected": ~samples.accepted}
    counts: dict[str, MetricRow] = {
        name: {"count": float(kind.sum()), "fraction": _share(samples, kind, everything)}
        for name, kind in kinds.items()
    }
    return counts | {"features": {"count": float(len(LOGIT_SCORES))}}


def _by_decile(samples: TokenSamples, feature: int) -> dict[str, MetricRow]:
    """Deciles of one score, lowest first. Equal values stay together, so there may be fewer than ten."""
    values = samples.features[:, feature].astype(np.float64)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
    place = np.searchsorted(edges, values, "right")
    return {
        f"tenth {part + 1}": {
            "value": float(values[place == part].mean()),
            "count": float((place == part).sum()),
            "acceptance_rate": _share(samples, samples.accepted & (place == part), place == part),
        }
        for part in np.unique(place).tolist()
    }


def _correlations(samples: TokenSamples) -> dict[str, MetricRow]:
    session, n = _session_indices(samples)
    stood = samples.accepted.astype(np.float64)
    return {
        name: {"r": clustered_pearson(samples.features[:, i].astype(np.float64), stood, session, n)}
        for i, name in enumerate(LOGIT_SCORES)
    }


def clustered_pearson(a: Floats, b: Floats, session: Ints, num_sessions: int) -> ClusterValues:
    """Pearson's correlation as one value for each session (see `training.fitting.cluster_statistics`).

    None if one of the two is constant.
    """
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    x, y = ((each - each.mean()) / each.std() for each in (a, b))
    r = float((x * y).mean())
    influence = x * y - r * (x**2 + y**2) / 2
    return list((r + np.bincount(session, influence, num_sessions) * num_sessions / len(a)).tolist())


def _share(samples: TokenSamples, selected: Flags, among: Flags) -> ClusterValues:
    return clustered_ratio(selected, among, *_session_indices(samples))


def _session_indices(samples: TokenSamples) -> tuple[Ints, int]:
    names, session = np.unique(samples.session, return_inverse=True)
    return session.astype(np.int64), len(names)
