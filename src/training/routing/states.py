"""The artifact `routes.safetensors`: the states of trajectories, and whose token is preferred in each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from training.fitting.splits import parted

FILE, HEADER = "routes.safetensors", "routes.json"
PARTS = (0.8, 0.1, 0.1)
"""Of the prompts: training, validation, test."""

By = Literal["small", "large", "alike", "compared", "unasked"]
BY: tuple[By, ...] = ("small", "large", "alike", "compared", "unasked")
"""Why a token is preferred: the small model writes the true one; only the large does; both write the same wrong one;
the quality of what comes of either; or it is not known, because enough of the trajectory's states were compared.
"""


@dataclass(frozen=True, eq=False)
class States:
    """`n` states of trajectories: a prompt and an answer up to some token, whose next token is somebody's to write."""

    hidden: NDArray[np.float32]
    """(n, hidden) the small model's last hidden state, behind its last norm."""
    small_preferred: NDArray[np.bool_]
    """(n,)"""
    by: NDArray[np.uint8]
    """(n,) indices into `BY`."""
    truth: NDArray[np.int32]
    """(n,) the true next token; -1 where the trajectory has left the reference, so that there is none."""
    small_odds: NDArray[np.float32]
    """(n,) the small model's log-probability of the true token; 0 where there is none."""
    large_odds: NDArray[np.float32]
    """(n,)"""
    text: NDArray[np.int32]
    """(n,) which text the state is of; a text's states come in its order."""
    tokens: NDArray[np.int32]
    """(t,) all texts end to end, prompts first."""
    ends: NDArray[np.int64]
    """(texts,) where each text ends."""
    prompts: NDArray[np.int64]
    """(texts,) how many tokens of each are its prompt."""
    names: tuple[str, ...] = ()
    """(texts,) of each text's prompt in its data set."""

    def __len__(self) -> int:
        return len(self.text)

    @property
    def features(self) -> NDArray[np.float32]:
        return self.hidden

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """What a router is taught: the small model's own token is preferred."""
        return self.small_preferred

    def of(self, names: frozenset[str]) -> States:
        """The states of these prompts; texts stay as they are."""
        kept = np.array([name in names for name in self.names], np.bool_)[self.text]
        return self._rows(kept)

    @property
    def asked(self) -> frozenset[str]:
        """The prompts that these are states of."""
        return frozenset(self.names[text] for text in np.unique(self.text).tolist())

    def known(self) -> States:
        """The states whose true token is known."""
        return self._rows(self.truth >= 0)

    def judged(self) -> States:
        """The states in which it is known whose token is preferred."""
        return self._rows(self.by != BY.index("unasked"))

    def path(self, text: int) -> tuple[list[int], int]:
        """The tokens of one text, and how many of them are its prompt."""
        first = int(self.ends[text - 1]) if text else 0
        return self.tokens[first : int(self.ends[text])].tolist(), int(self.prompts[text])

    def _rows(self, kept: NDArray[np.bool_]) -> States:
        rows = {name: getattr(self, name)[kept] for name in _ROWS}
        return States(**rows, **{name: getattr(self, name) for name in _TEXTS}, names=self.names)


_TEXTS = ("tokens", "ends", "prompts")
_ROWS = tuple(field.name for field in fields(States) if field.name not in (*_TEXTS, "names"))


@dataclass(frozen=True)
class Split:
    """States that share no prompt."""

    train: States
    validation: States
    test: States

    @property
    def learned(self) -> frozenset[str]:
        """The prompts that weights and threshold are learned from."""
        return self.train.asked | self.validation.asked


def split(states: States, seed: int) -> Split:
    """By prompt. Raises ValueError where a part would have no state in which the large model is preferred, or none in
    which the small one is.
    """
    names = sorted(set(states.names))
    parts = [states.of(frozenset(part)) for part in parted(names, PARTS, seed)]
    if not all(part.small_preferred.any() and not part.small_preferred.all() for part in parts):
        raise ValueError(
            f"{len(states)} states of {len(names)} prompts, in {int((~states.small_preferred).sum())} of which the "
            "large model is preferred, cannot be split into training, validation and test with both kinds in each; "
            "raise workload.profiling.prompts, or change the pair"
        )
    return Split(*parts)


def joined(rounds: Sequence[States]) -> States:
    """The states of several rounds as those of one."""
    texts = np.cumsum([0, *(len(each.names) for each in rounds)])
    tokens = np.cumsum([0, *(len(each.tokens) for each in rounds)])
    shifted: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in rounds]) for name in (*_ROWS, *_TEXTS)
    }
    shifted["text"] = np.concatenate([each.text + at for each, at in zip(rounds, texts, strict=False)]).astype(np.int32)
    shifted["ends"] = np.concatenate([each.ends + at for each, at in zip(rounds, tokens, strict=False)])
    return States(**shifted, names=tuple(name for each in rounds for name in each.names))


def write(folder: Path, states: States, made_from: Mapping[str, str]) -> None:
    """Writes routes.safetensors, and routes.json with what they were made from."""
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(getattr(states, name)) for name in (*_ROWS, *_TEXTS)}
    save_file(arrays, folder / FILE)
    header = {"made_from": dict(made_from), "states": len(states), "by": figures(states), "names": states.names}
    (folder / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def read(folder: Path) -> States:
    """What `training.routing.stages.record_routes` wrote; raises ValueError that names a bad file."""
    from safetensors.numpy import load_file

    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        return States(**load_file(folder / FILE), names=tuple(header["names"]))
    except Exception as problem:  # SafetensorError is no ValueError
        raise ValueError(f"the states of {folder / FILE} cannot be read ({problem!r}); train again") from None


def made_from(folder: Path) -> dict[str, str]:
    """What they were made from: pair, data, policy of the trajectories."""
    return dict(json.loads((folder / HEADER).read_text(encoding="utf-8"))["made_from"])


def figures(states: States) -> dict[str, Any]:
    """How often each reason decided, and for whom."""
    n = max(1, len(states))
    found: dict[str, Any] = {by: float((states.by == i).sum()) / n for i, by in enumerate(BY)}
    return found | {"large_preferred": float((~states.small_preferred).sum()) / n}
