"""States of trajectories: by prompt, joined, and on disk."""

from pathlib import Path

import numpy as np
import pytest

from training.routing.states import PREFERENCE_REASONS, RoutingStates, concatenate, read, reason_shares, split, write


def made(texts: int, seed: int = 0, prefix: str = "p") -> RoutingStates:
    """Texts of four tokens, two of them a prompt, with two states each."""
    draw = np.random.default_rng(seed)
    n = 2 * texts
    return RoutingStates(
        hidden=draw.normal(size=(n, 3)).astype(np.float32),
        small_preferred=np.arange(n) % 2 == 0,
        reason=np.array([0, 1] * texts, np.uint8),
        reference_token=np.array([5, -1] * texts, np.int32),
        small_logprobs=draw.normal(size=n).astype(np.float32),
        large_logprobs=draw.normal(size=n).astype(np.float32),
        text_index=np.repeat(np.arange(texts), 2).astype(np.int32),
        tokens=np.arange(4 * texts).astype(np.int32),
        text_ends=4 * np.arange(1, texts + 1),
        prompt_lens=np.full(texts, 2),
        prompt_ids=tuple(f"{prefix}{i}" for i in range(texts)),
    )


def test_states_of_one_prompt_are_in_one_part() -> None:
    """Whichever round its states are of."""
    both = concatenate([made(20), made(20, seed=1)])
    parts = split(both, 0)
    sides = [
        {both.prompt_ids[text] for text in part.text_index} for part in (parts.train, parts.validation, parts.test)
    ]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 20
    assert sum(map(len, (parts.train, parts.validation, parts.test))) == len(both) == 80


def test_rounds_keep_their_texts() -> None:
    one, other = made(3), made(2, seed=1, prefix="q")
    both = concatenate([one, other])
    assert [both.text_tokens(i) for i in range(5)] == [
        *(one.text_tokens(i) for i in range(3)),
        *(other.text_tokens(i) for i in range(2)),
    ]
    assert [both.prompt_ids[text] for text in both.text_index] == [f"p{i // 2}" for i in range(6)] + [
        f"q{i // 2}" for i in range(4)
    ]
    assert np.array_equal(both.hidden, np.concatenate([one.hidden, other.hidden]))


def test_states_with_a_reference_have_its_tokens() -> None:
    assert set(made(4).with_reference().reference_token.tolist()) == {5}


def test_preferences_of_one_kind_are_refused() -> None:
    states = made(20)
    states.small_preferred[:] = True
    with pytest.raises(ValueError, match="in 0 of which the large model is preferred, cannot be split"):
        split(states, 0)


def test_saved_states_are_loaded(tmp_path: Path) -> None:
    states = made(5)
    write(tmp_path, states, {"pair": "a + b"})
    found = read(tmp_path)
    assert found.prompt_ids == states.prompt_ids
    assert all(
        np.array_equal(getattr(found, name), getattr(states, name))
        for name in ("hidden", "reason", "text_ends", "reference_token")
    )
    assert reason_shares(found) == dict.fromkeys(PREFERENCE_REASONS, 0.0) | {
        "small": 0.5,
        "large": 0.5,
        "large_preferred": 0.5,
    }


def test_a_damaged_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"routes\.safetensors cannot be read"):
        read(tmp_path)
