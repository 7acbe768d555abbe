"""Untimed runs make the decisions of timed ones."""

from serving.outcomes.offline import CONCURRENT_SESSIONS, run_untimed
from serving.runtimes import emulated
from tests.support.fake_setup import models, queries, setup


def test_an_untimed_run_makes_the_same_decisions() -> None:
    timed = emulated.simulate(setup("sled"), models(), queries(CONCURRENT_SESSIONS + 3))
    played = run_untimed(
        setup("sled").policy, models(), queries(CONCURRENT_SESSIONS + 3), 0, lambda done, total, note: None
    )
    assert {n: r.tokens for n, r in played.items()} == {n: r.tokens for n, r in timed.items()}
    chunks = {n: [c.accepted for c in r.draft_decisions] for n, r in played.items()}
    assert chunks == {n: [c.accepted for c in r.draft_decisions] for n, r in timed.items()}


def test_an_untimed_run_reports_progress() -> None:
    told: list[tuple[int, int]] = []
    run_untimed(setup("sled").policy, models(), queries(3), 0, lambda done, total, note: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
