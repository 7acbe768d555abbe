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
class Windows:
    """`w` windows of `t` tokens in all, in the order they were drafted, with the tokens behind a rejection."""

    features: NDArray[np.float32]
    """(t, 4), in the order of `serving.core.scores.SCORES`."""
    window: Ints
    """(t,) which window a token belongs to: 0..w-1, ascending."""
    position: Ints
    """(t,) its place in the window, from 0."""
    accepted: Ints
    """(w,) L of WISP, Eq. 2: how many tokens of the window stand."""
    session: Names
    """(w,) whose window it is."""

    def __len__(self) -> int:
        return len(self.accepted)

    @cached_property
    def drafted(self) -> Ints:
        """(w,) how long each window is."""
        return np.bincount(self.window, minlength=len(self)).astype(np.int64)

    def of(self, sessions: Names) -> Windows:
        """The windows of these sessions."""
        kept = np.isin(self.session, sessions)
        tokens = kept[self.window]
        number = np.cumsum(kept) - 1
        return Windows(
            self.features[tokens], number[self.window[tokens]], self.position[tokens],
            self.accepted[kept], self.session[kept],
        )  # fmt: skip

    def sent(self, chances: Floats, threshold: float) -> Ints:
        """(w,) tokens that are left where drafting stops before the first chance below `threshold`, and one at least.

        `chances` are of shape (t,). WISP, section 4.1 and Eq. 25; an empty draft is not allowed.
        """
        stops = np.where(chances < threshold, np.maximum(self.position, 1), self.drafted[self.window])
        found = self.drafted.copy()
        np.minimum.at(found, self.window, stops)
        return found

    def wasted(self, sent: Ints) -> Ints:
        """(w,) W of WISP, Eq. 7, with `sent` tokens of each window for its K."""
        return sent - np.minimum(sent, self.accepted)
