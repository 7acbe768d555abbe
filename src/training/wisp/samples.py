"""Token-level samples of served windows: what the drafter knew of a token, and whether the token stood."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.fitting.splits import parted
from training.wisp import trace
from training.wisp.windows import Flags, Names, Windows

PARTS = (0.70, 0.15, 0.15)
"""Of the sessions: training, validation, test."""


@dataclass(frozen=True, eq=False)
class Samples:
    """`n` tokens up to the first rejected one of their windows (WISP, appendix B), and the windows whole, for waste."""

    features: NDArray[np.float32]
    """(n, 4), in the order of `serving.core.scores.SCORES`."""
    accepted: Flags
    """(n,) The token stood; else it is the first of its window that did not."""
    session: Names
    """(n,)"""
    windows: Windows

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def sessions(self) -> Names:
        """Each session once, in order."""
        return np.unique(self.windows.session)

    def of(self, sessions: Names) -> Samples:
        """The samples of these sessions."""
        kept = np.isin(self.session, sessions)
        return Samples(self.features[kept], self.accepted[kept], self.session[kept], self.windows.of(sessions))

    def split(self, seed: int) -> Split:
        """Training, validation and test by session, so that no answer is in two of them.

        Raises ValueError where there are fewer than three sessions, or a part has no accepted or no rejected token.
        """
        sessions = self.sessions
        parts = [self.of(np.array(names)) for names in parted(sessions.tolist(), PARTS, seed)]
        if not all(part.accepted.any() and not part.accepted.all() for part in parts):
            raise ValueError(
                f"{len(self)} tokens of {len(sessions)} sessions, {int(self.accepted.sum())} of them accepted, cannot "
                "be split into training, validation and test with accepted and rejected tokens in each; raise "
                "workload.profiling.prompts, or change the pair"
            )
        return Split(*parts)


@dataclass(frozen=True)
class Split:
    """Three sets of samples that share no session."""

    train: Samples
    validation: Samples
    test: Samples


def load(path: Path) -> Samples:
    """The samples of a `record_tokens` artifact; raises ValueError that names a missing or damaged file."""
    tokens = trace.read(path)
    before = tokens.standing != trace.AFTER
    return Samples(tokens.features[before], tokens.standing[before] == trace.ACCEPTED, tokens.session[before],
                   tokens.windows())  # fmt: skip
