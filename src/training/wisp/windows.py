"""Drafted windows, and what is left of them where drafting stops at the first predicted rejection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Names = NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class DraftWindows:
    """`w` windows of `t` tokens in all, in the order they were drafted, with the tokens behind a rejection."""

    features: NDArray[np.float32]
    """(t, 4), in the order of `serving.core.scores.LOGIT_SCORES`."""
    window_index: Ints
    """(t,) which window a token belongs to: 0..w-1, ascending."""
    position: Ints
    """(t,) its place in the window, from 0."""
    accepted_lengths: Ints
    """(w,) L of WISP, Eq. 2: how many tokens of the window stand."""
    session: Names
    """(w,) whose window it is."""

    def __len__(self) -> int:
        return len(self.accepted_lengths)

    @cached_property
    def lengths(self) -> Ints:
        """(w,) how long each window is."""
        return np.bincount(self.window_index, minlength=len(self)).astype(np.int64)

    def for_sessions(self, sessions: Names) -> DraftWindows:
        """The windows of these sessions."""
        kept = np.isin(self.session, sessions)
        tokens = kept[self.window_index]
        number = np.cumsum(kept) - 1
        return DraftWindows(
            self.features[tokens], number[self.window_index[tokens]], self.position[tokens],
            self.accepted_lengths[kept], self.session[kept],
        )  # fmt: skip

    def truncated_lengths(self, probabilities: Floats, threshold: float) -> Ints:
        """(w,) tokens that are left where drafting stops before the first chance below `threshold`, and one at least.

        `probabilities` are of shape (t,). WISP, section 4.1 and Eq. 25; an empty draft is not allowed.
        """
        stops = np.where(probabilities < threshold, np.maximum(self.position, 1), self.lengths[self.window_index])
        found = self.lengths.copy()
        np.minimum.at(found, self.window_index, stops)
        return found

    def wasted_tokens(self, truncated_lengths: Ints) -> Ints:
        """(w,) W of WISP, Eq. 7, with `truncated_lengths` tokens of each window for its K."""
        return truncated_lengths - np.minimum(truncated_lengths, self.accepted_lengths)
