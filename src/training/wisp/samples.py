"""Token-level samples of served windows: what the drafter knew of a token, and whether the token stood."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.fitting.splits import random_split
from training.wisp import trace
from training.wisp.windows import DraftWindows, Flags, Names

SPLIT_SHARES = (0.70, 0.15, 0.15)
"""Of the sessions: training, validation, test."""


@dataclass(frozen=True, eq=False)
class TokenSamples:
    """`n` tokens up to the first rejected one of their windows (WISP, appendix B), and the windows whole, for waste."""

    features: NDArray[np.float32]
    """(n, 4), in the order of `serving.core.scores.LOGIT_SCORES`."""
    accepted: Flags
    """(n,) The token stood; else it is the first of its window that did not."""
    session: Names
    """(n,)"""
    windows: DraftWindows

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def sessions(self) -> Names:
        """Each session once, in order."""
        return np.unique(self.windows.session)

    def for_sessions(self, sessions: Names) -> TokenSamples:
        """The samples of these sessions."""
        kept = np.isin(self.session, sessions)
        return TokenSamples(
            self.features[kept], self.accepted[kept], self.session[kept], self.windows.for_sessions(sessions)
        )

    def split(self, seed: int) -> SampleSplit:
        """Training, validation and test by session, so that no answer is in two of them.

        Raises ValueError where there are fewer than three sessions, or a part has no accepted or no rejected token.
        """
        sessions = self.sessions
        parts = [self.for_sessions(np.array(names)) for names in random_split(sessions.tolist(), SPLIT_SHARES, seed)]
        if not all(part.accepted.any() and not part.accepted.all() for part in parts):
            raise ValueError(
                f"{len(self)} tokens of {len(sessions)} sessions, {int(self.accepted.sum())} of them accepted, cannot "
                "be split into training, validation and test with accepted and rejected tokens in each; raise "
                "workload.profiling.num_prompts, or change the pair"
            )
        return SampleSplit(*parts)


@dataclass(frozen=True)
class SampleSplit:
    """Three sets of samples that share no session."""

    train: TokenSamples
    validation: TokenSamples
    test: TokenSamples


def load_samples(path: Path) -> TokenSamples:
    """The samples of a `record_tokens` artifact; raises ValueError that names a missing or damaged file."""
    tokens = trace.read(path)
    before = tokens.outcome != trace.AFTER_REJECTION
    return TokenSamples(tokens.features[before], tokens.outcome[before] == trace.ACCEPTED, tokens.session[before],
                   tokens.windows())  # fmt: skip
