"""The artifact `routes.safetensors`: states of trajectories, and which model's token is preferred in each state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from training.fitting.held_out import random_splits

STATES_FILE, HEADER_FILE = "routes.safetensors", "routes.json"
SPLIT_SHARES = (0.8, 0.1, 0.1)
"""Shares of the prompts: training, validation, test."""

PreferenceReason = Literal["small", "large", "alike", "compared", "unasked"]
PREFERENCE_REASONS: tuple[PreferenceReason, ...] = ("small", "large", "alike", "compared", "unasked")
"""Why a token is preferred. small: the small model writes the true token; large: only the large model does; alike: both
write the same wrong token; compared: by the quality of both continuations; unasked: not known, since the trajectory
already had `max_comparisons` comparisons.
"""


@dataclass(frozen=True, eq=False)
class RoutingStates:
    """`n` states of trajectories. A state is a prompt and a part of its answer; its next token is to be routed."""

    hidden: NDArray[np.float32]
    """(n, hidden) the small model's last hidden state, after its last norm."""
    small_preferred: NDArray[np.bool_]
    """(n,)"""
    reason: NDArray[np.uint8]
    """(n,) indices into `PREFERENCE_REASONS`."""
    reference_token: NDArray[np.int32]
    """(n,) the true next token; -1 if the trajectory has left the reference."""
    small_logprobs: NDArray[np.float32]
    """(n,) the small model's log-probability of the true token; 0 if there is none."""
    large_logprobs: NDArray[np.float32]
    """(n,)"""
    text_index: NDArray[np.int32]
    """(n,) index of the state's text; a text's states are in order."""
    tokens: NDArray[np.int32]
    """(t,) all texts end to end, prompts first."""
    text_ends: NDArray[np.int64]
    """(texts,) end of each text in `tokens`."""
    prompt_lens: NDArray[np.int64]
    """(texts,) length of each text's prompt."""
    prompt_ids: tuple[str, ...] = ()
    """(texts,) id of each text's prompt in its data set."""

    def __len__(self) -> int:
        return len(self.text_index)

    @property
    def features(self) -> NDArray[np.float32]:
        return self.hidden

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """The label that a router learns: True if the small model's token is preferred."""
        return self.small_preferred

    def for_prompts(self, prompt_ids: frozenset[str]) -> RoutingStates:
        """The states of these prompts; texts are kept."""
        kept = np.array([name in prompt_ids for name in self.prompt_ids], np.bool_)[self.text_index]
        return self._select(kept)

    @property
    def used_prompt_ids(self) -> frozenset[str]:
        """Ids of the prompts of these states."""
        return frozenset(self.prompt_ids[text] for text in np.unique(self.text_index).tolist())

    def with_reference(self) -> RoutingStates:
        """The states whose true token is known."""
        return self._select(self.reference_token >= 0)

    def with_preference(self) -> RoutingStates:
        """The states whose preference is known."""
        return self._select(self.reason != PREFERENCE_REASONS.index("unasked"))

    def text_tokens(self, text: int) -> tuple[list[int], int]:
        """The tokens of one text, and the length of its prompt."""
        first = int(self.text_ends[text - 1]) if text else 0
        return self.tokens[first : int(self.text_ends[text])].tolist(), int(self.prompt_lens[text])

    def _select(self, kept: NDArray[np.bool_]) -> RoutingStates:
        rows = {name: getattr(self, name)[kept] for name in _STATE_FIELDS}
        return RoutingStates(**rows, **{name: getattr(self, name) for name in _TEXT_FIELDS}, prompt_ids=self.prompt_ids)


_TEXT_FIELDS = ("tokens", "text_ends", "prompt_lens")
_STATE_FIELDS = tuple(field.name for field in fields(RoutingStates) if field.name not in (*_TEXT_FIELDS, "prompt_ids"))


@dataclass(frozen=True)
class RoutingSplit:
    """Three sets of states that share no prompt."""

    train: RoutingStates
    validation: RoutingStates
    test: RoutingStates

    @property
    def used_prompt_ids(self) -> frozenset[str]:
        """Ids of the prompts that weights and threshold are learned from."""
        return self.train.used_prompt_ids | self.validation.used_prompt_ids


def split(states: RoutingStates, seed: int) -> RoutingSplit:
    """Random split by prompt, the first in which every part has states of both preferences.

    Raises ValueError if none of the splits that are tried has.
    """
    names = sorted(set(states.prompt_ids))
    for drawn in random_splits(names, SPLIT_SHARES, seed):
        parts = [states.for_prompts(frozenset(part)) for part in drawn]
        if all(part.small_preferred.any() and not part.small_preferred.all() for part in parts):
            break
    else:
        raise ValueError(
            f"{len(states)} states of {len(names)} prompts, in {int((~states.small_preferred).sum())} of which the "
            "large model is preferred, cannot be split into training, validation and test with both kinds in each; "
            "raise workload.profiling.num_prompts, or change the pair"
        )
    return RoutingSplit(*parts)


def concatenate(rounds: Sequence[RoutingStates]) -> RoutingStates:
    """The states of several rounds in one."""
    texts = np.cumsum([0, *(len(each.prompt_ids) for each in rounds)])
    tokens = np.cumsum([0, *(len(each.tokens) for each in rounds)])
    shifted: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in rounds]) for name in (*_STATE_FIELDS, *_TEXT_FIELDS)
    }
    shifted["text_index"] = np.concatenate(
        [each.text_index + at for each, at in zip(rounds, texts, strict=False)]
    ).astype(np.int32)
    shifted["text_ends"] = np.concatenate([each.text_ends + at for each, at in zip(rounds, tokens, strict=False)])
    return RoutingStates(**shifted, prompt_ids=tuple(name for each in rounds for name in each.prompt_ids))


def write(folder: Path, states: RoutingStates, made_from: Mapping[str, str]) -> None:
    """Writes routes.safetensors, and routes.json with the sources."""
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(getattr(states, name)) for name in (*_STATE_FIELDS, *_TEXT_FIELDS)}
    save_file(arrays, folder / STATES_FILE)
    header = {
        "made_from": dict(made_from),
        "states": len(states),
        "reasons": reason_shares(states),
        "prompt_ids": states.prompt_ids,
    }
    (folder / HEADER_FILE).write_text(json.dumps(header, indent=1), encoding="utf-8")


def read(folder: Path) -> RoutingStates:
    """Reads what `training.routing.stages.record_routes` wrote. Raises ValueError that names a bad file."""
    from safetensors.numpy import load_file

    try:
        header = json.loads((folder / HEADER_FILE).read_text(encoding="utf-8"))
        return RoutingStates(**load_file(folder / STATES_FILE), prompt_ids=tuple(header["prompt_ids"]))
    except Exception as problem:  # SafetensorError is no ValueError
        raise ValueError(f"the states of {folder / STATES_FILE} cannot be read ({problem!r}); train again") from None


def made_from(folder: Path) -> dict[str, str]:
    """The sources: pair, data, policy of the trajectories."""
    return dict(json.loads((folder / HEADER_FILE).read_text(encoding="utf-8"))["made_from"])


def reason_shares(states: RoutingStates) -> dict[str, Any]:
    """Share of the states with each reason, and of those in which the large model is preferred."""
    n = max(1, len(states))
    found: dict[str, Any] = {
        reason: float((states.reason == i).sum()) / n for i, reason in enumerate(PREFERENCE_REASONS)
    }
    return found | {"large_preferred": float((~states.small_preferred).sum()) / n}
