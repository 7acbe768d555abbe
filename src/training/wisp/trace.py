"""The artifact `tokens.parquet`: every drafted token of served windows with its outcome; and the windows themselves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.core.scores import LOGIT_SCORES
from serving.messages import DraftDecision

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Names = NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class DraftWindows:
    """`w` drafted windows of `t` tokens in all, in the order of drafting, with the tokens behind a rejection."""

    features: NDArray[np.float32]
    """(t, 4), in the order of `serving.core.scores.LOGIT_SCORES`."""
    window_index: Ints
    """(t,) index of a token's window: 0..w-1, ascending."""
    position: Ints
    """(t,) position in the window, from 0."""
    accepted_lengths: Ints
    """(w,) L of WISP, Eq. 2: accepted tokens of the window."""
    session: Names
    """(w,)"""

    def __len__(self) -> int:
        return len(self.accepted_lengths)

    @cached_property
    def lengths(self) -> Ints:
        """(w,) drafted tokens of each window."""
        return np.bincount(self.window_index, minlength=len(self)).astype(np.int64)

    def for_sessions(self, sessions: Names) -> "DraftWindows":
        """The windows of these sessions."""
        kept = np.isin(self.session, sessions)
        tokens = kept[self.window_index]
        number = np.cumsum(kept) - 1
        return DraftWindows(
            self.features[tokens], number[self.window_index[tokens]], self.position[tokens],
            self.accepted_lengths[kept], self.session[kept],
        )  # fmt: skip

    def truncated_lengths(self, probabilities: Floats, threshold: float) -> Ints:
        """(w,) tokens of each window before the first probability below `threshold`; at least one.

        `probabilities` are of shape (t,). WISP, section 4.1 and Eq. 25; an empty draft is not allowed.
        """
        stops = np.where(probabilities < threshold, np.maximum(self.position, 1), self.lengths[self.window_index])
        found = self.lengths.copy()
        np.minimum.at(found, self.window_index, stops)
        return found

    def wasted_tokens(self, truncated_lengths: Ints) -> Ints:
        """(w,) W of WISP, Eq. 7, with `truncated_lengths` tokens of each window for its K."""
        return truncated_lengths - np.minimum(truncated_lengths, self.accepted_lengths)


TRACE_FILE = "tokens.parquet"
HEADER_FILE = "tokens.json"
ACCEPTED, REJECTED, AFTER_REJECTION = "accepted", "rejected", "after"
"""A token's outcome. rejected: the first rejected token of its window; after: behind that one."""
POSITION_COLUMNS = ("session", "round", "position")
COLUMNS = (*POSITION_COLUMNS, *LOGIT_SCORES, "outcome")


@dataclass(frozen=True, eq=False)
class TokenTrace:
    """The columns of the file: one row per drafted token, windows and positions in order."""

    session: Names
    round: Ints
    """Index of the window in its session, from 0."""
    position: Ints
    features: NDArray[np.float32]
    """(t, 4), in the order of `serving.core.scores.LOGIT_SCORES`."""
    outcome: Names

    def windows(self) -> DraftWindows:
        first = self.position == 0
        window = np.cumsum(first) - 1
        accepted = np.bincount(window, self.outcome == ACCEPTED, int(first.sum())).astype(np.int64)
        return DraftWindows(self.features, window, self.position, accepted, self.session[first])


def trace_from_decisions(decisions: Mapping[str, Sequence[DraftDecision]]) -> TokenTrace:
    """The tokens of each session's verified windows.

    Raises ValueError if nothing was drafted, or a window was not verified.
    """
    rows = [
        (session, i, chunk) for session, found in decisions.items() for i, chunk in enumerate(found) if chunk.tokens
    ]
    if not rows:
        raise ValueError(
            "not one draft was made on the profiling prompts; raise workload.profiling.num_prompts or max_new_tokens"
        )
    if any(chunk.accepted is None for _, _, chunk in rows):
        raise ValueError("a window was not verified, so the outcome of its tokens is not known")
    lengths = [len(chunk.tokens) for _, _, chunk in rows]
    return TokenTrace(
        session=np.repeat(np.array([session for session, _, _ in rows]), lengths),
        round=np.repeat(np.array([i for _, i, _ in rows], np.int64), lengths),
        position=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        features=np.concatenate([_features(chunk) for _, _, chunk in rows]),
        outcome=np.concatenate([_outcomes(chunk) for _, _, chunk in rows]),
    )


def _features(decision: DraftDecision) -> NDArray[np.float32]:
    return np.array([decision.scores[name] for name in LOGIT_SCORES], np.float32).T


def _outcomes(decision: DraftDecision) -> Names:
    place = np.arange(len(decision.tokens)) - (decision.accepted or 0)
    return np.select([place < 0, place == 0], [ACCEPTED, REJECTED], AFTER_REJECTION)


def write(folder: Path, tokens: TokenTrace, made_from: Mapping[str, str]) -> None:
    """Writes the table, and tokens.json with its sources."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: getattr(tokens, name) for name in POSITION_COLUMNS}
    columns |= {name: tokens.features[:, i] for i, name in enumerate(LOGIT_SCORES)}
    table = pa.table({**columns, "outcome": pa.array(tokens.outcome).dictionary_encode()})
    parquet.write_table(table, folder / TRACE_FILE)
    header = {"made_from": dict(made_from), "tokens": len(tokens.session)}
    (folder / HEADER_FILE).write_text(json.dumps(header, indent=1), encoding="utf-8")


def read(folder: Path) -> TokenTrace:
    """Reads what `training.wisp.stages.record_token_trace` wrote. Raises ValueError that names a bad file."""
    import pyarrow as pa
    from pyarrow import parquet

    file = folder / TRACE_FILE
    try:
        table = parquet.read_table(file, columns=list(COLUMNS))
        column = {name: table[name].to_numpy() for name in COLUMNS}
    except (OSError, pa.ArrowException, KeyError) as problem:
        if not file.exists():
            raise ValueError(f"there is no {file}; stage=profile makes it") from None
        again = f"profile again, with force=[{folder.parent.name}]"  # the store's STAGE/DIGEST
        raise ValueError(f"the tokens of {file} cannot be read ({' '.join(str(problem).split())}); {again}") from None
    return TokenTrace(
        column["session"].astype(np.str_), column["round"], column["position"],
        np.stack([column[name] for name in LOGIT_SCORES], axis=1), column["outcome"].astype(np.str_),
    )  # fmt: skip


def made_from(folder: Path) -> dict[str, str]:
    """The trace's sources: pair, data, window, seed."""
    try:
        return dict(json.loads((folder / HEADER_FILE).read_text(encoding="utf-8"))["made_from"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ValueError(
            f"{folder / HEADER_FILE} cannot be read ({problem!r}); profile again with stage=profile"
        ) from None
