"""Untimed runs make the decisions of timed ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.metrics.recorder import SessionRecord
from serving.outcomes.offline import CONCURRENT_SESSIONS, run_untimed
from serving.policy.slots.offload import RandomOffload
from serving.runtimes import emulated
from tests.support.fake_setup import PoolingEngine, StepwiseEngine, models, queries, setup
from training.routing.serving_eval import routing_policy


def test_an_untimed_run_makes_the_same_decisions() -> None:
    timed = emulated.simulate(setup("sled"), models(), queries(CONCURRENT_SESSIONS + 3))
    played = run_untimed(
        setup("sled").policy, models(), queries(CONCURRENT_SESSIONS + 3), 0, lambda done, total, note: None
    )
    assert {n: r.tokens for n, r in played.items()} == {n: r.tokens for n, r in timed.items()}
    chunks = {n: [c.accepted for c in r.draft_decisions] for n, r in played.items()}
    assert chunks == {n: [c.accepted for c in r.draft_decisions] for n, r in timed.items()}


def test_sessions_that_draft_at_one_tick_share_forwards_and_decide_as_alone() -> None:
    policy = routing_policy(RandomOffload(0.3))
    engines = StepwiseEngine(), PoolingEngine()
    alone, together = (
        {
            name: (one.tokens, one.origins)
            for name, one in run_untimed(
                policy, replace(models(), device=engine), queries(24), 0, lambda done, total, note: None
            ).items()
        }
        for engine in engines
    )
    assert together == alone
    assert len({origin for _, origins in alone.values() for origin in origins}) > 1
    drafted = sum(len(tokens) for tokens, _ in alone.values())
    assert engines[1].most > CONCURRENT_SESSIONS / 2
    assert engines[1].forwards < drafted / 2


class EndedError(Exception):
    """Ends a recording as Ctrl-C does."""


def recorded(kept: Path, num_queries: int, end_after: int | None = None) -> tuple[dict[str, SessionRecord], list[int]]:
    """A recording with the file `kept`, and the counts that it told; it is ended after `end_after` sessions."""
    told: list[int] = []

    def tell(done: int, _total: int, _note: str) -> None:
        told.append(done)
        if done == end_after:
            raise EndedError

    return run_untimed(setup("synera").policy, models(), queries(num_queries), 0, tell, kept=kept), told


def what_recordings_read(records: dict[str, SessionRecord]) -> dict[str, Any]:
    return {name: (one.tokens, one.origins, one.draft_decisions) for name, one in sorted(records.items())}


@pytest.mark.parametrize(
    "cut", ["", '{"session": "r00', '{"session": 3}\n'], ids=["whole", "half a line", "no session"]
)
def test_an_interrupted_recording_goes_on_with_the_sessions_that_are_left(tmp_path: Path, cut: str) -> None:
    whole, _ = recorded(tmp_path / "whole", 40)
    with pytest.raises(EndedError):
        recorded(tmp_path / "kept", 40, end_after=25)
    with (tmp_path / "kept").open("a") as file:
        file.write(cut)
    resumed, told = recorded(tmp_path / "kept", 40)
    assert what_recordings_read(resumed) == what_recordings_read(whole)
    assert told == list(range(26, 41))
    again, told = recorded(tmp_path / "kept", 40)
    assert what_recordings_read(again) == what_recordings_read(whole)
    assert told == []


def test_an_untimed_run_reports_progress() -> None:
    told: list[tuple[int, int]] = []
    run_untimed(setup("sled").policy, models(), queries(3), 0, lambda done, total, note: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
