"""Traces of verified windows and their samples, by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.core.scores import LOGIT_SCORES
from serving.messages import DraftDecision
from training.wisp import trace
from training.wisp.rules import coverage
from training.wisp.samples import TokenSamples, load_samples

CHUNKS = {
    "a": [(0.9, 0.8, 0.2), 2], "b": [(0.1, 0.7), 0], "c": [(0.6, 0.5, 0.4), 3], "d": [(0.3,), 1],
}  # fmt: skip


def chunk(session: str, confidence: tuple[float, ...], accepted: int | None) -> DraftDecision:
    scores = {name: tuple(c + i for c in confidence) for i, name in enumerate(LOGIT_SCORES)}
    return DraftDecision(session, 0, tuple(range(len(confidence))), scores, accepted)


def gathered() -> trace.TokenTrace:
    return trace.trace_from_decisions({name: [chunk(name, *each)] for name, each in CHUNKS.items()})  # type: ignore[arg-type]


def test_the_first_unaccepted_token_is_rejected_and_later_ones_follow_a_rejection(tmp_path: Path) -> None:
    trace.write(tmp_path, gathered(), {"k": "3"})
    found = trace.read(tmp_path)
    yes, no, after = trace.ACCEPTED, trace.REJECTED, trace.AFTER_REJECTION
    assert found.outcome.tolist() == [yes, yes, no, no, after, yes, yes, yes, yes]
    assert found.position.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0]
    assert found.features.dtype == np.float32
    assert found.features[2] == pytest.approx([0.2, 1.2, 2.2, 3.2])
    assert trace.made_from(tmp_path) == {"k": "3"}


def test_tokens_after_a_rejection_are_no_samples_but_stay_in_their_window(tmp_path: Path) -> None:
    trace.write(tmp_path, gathered(), {})
    samples = load_samples(tmp_path)
    assert samples.session.tolist() == list("aaabcccd")
    assert samples.accepted.tolist() == [True, True, False, False, True, True, True, True]
    assert samples.windows.lengths.tolist() == [3, 2, 3, 1]
    assert samples.windows.accepted_lengths.tolist() == [2, 0, 3, 1]


def test_drafting_stops_before_the_first_predicted_rejection_and_has_one_token_at_least() -> None:
    windows = gathered().windows()
    chances = windows.features[:, 0].astype(np.float64)
    assert windows.truncated_lengths(chances, 0.05).tolist() == [3, 2, 3, 1]
    assert windows.truncated_lengths(chances, 0.55).tolist() == [2, 1, 1, 1]
    assert windows.truncated_lengths(chances, 0.95).tolist() == [1, 1, 1, 1]
    assert windows.wasted_tokens(windows.truncated_lengths(chances, 0.05)).tolist() == [1, 2, 0, 0]
    assert windows.wasted_tokens(windows.truncated_lengths(chances, 0.55)).tolist() == [0, 1, 0, 0]


def test_coverage_counts_the_targets_own_token() -> None:
    """2, 0, 1 and 1 of the accepted 2, 0, 3 and 1 are drafted, and each round has a token of the target's."""
    windows = gathered().windows()
    assert coverage(windows, windows.features[:, 0].astype(np.float64), 0.55) == pytest.approx(2.0 / 2.5)


def test_windows_of_selected_sessions_are_renumbered() -> None:
    found = gathered().windows().for_sessions(np.array(["b", "d"]))
    assert found.window_index.tolist() == [0, 0, 1]
    assert found.accepted_lengths.tolist() == [0, 1]


def test_a_trace_without_drafts_or_without_verdicts_is_refused() -> None:
    with pytest.raises(ValueError, match="not one draft was made on the profiling prompts; raise workload"):
        trace.trace_from_decisions({"a": []})
    with pytest.raises(ValueError, match="was not verified"):
        trace.trace_from_decisions({"a": [chunk("a", (0.5,), None)]})


def test_a_missing_and_a_damaged_trace_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*tokens\.parquet"):
        load_samples(tmp_path)
    (tmp_path / trace.TRACE_FILE).write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"tokens\.parquet cannot be read .*profile again, with force="):
        load_samples(tmp_path)
    with pytest.raises(ValueError, match=r"tokens\.json cannot be read"):
        trace.made_from(tmp_path)


def test_each_session_is_in_one_part(learnable: TokenSamples) -> None:
    split = learnable.split(0)
    parts = [set(part.sessions.tolist()) for part in (split.train, split.validation, split.test)]
    assert [len(part) for part in parts] == [84, 18, 18]
    assert len(set.union(*parts)) == 120
    assert sum(map(len, (split.train, split.validation, split.test))) == len(learnable)
    assert set(learnable.split(1).test.sessions.tolist()) != parts[2]
    assert set(learnable.split(0).test.sessions.tolist()) == parts[2]


def test_a_split_is_found_where_few_sessions_have_accepted_tokens(learnable: TokenSamples) -> None:
    """Of 20 sessions five: many a random split has none of them in its validation or its test part."""
    few = learnable.for_sessions(learnable.sessions[:20])
    few = replace(few, accepted=np.isin(few.session, few.sessions[:5]) & few.accepted)
    for seed in range(20):
        assert all(part.accepted.any() and not part.accepted.all() for part in few.split(seed))


def test_too_little_to_split_is_refused(learnable: TokenSamples) -> None:
    with pytest.raises(ValueError, match=r"cannot be split .* raise workload"):
        learnable.for_sessions(learnable.sessions[:2]).split(0)
