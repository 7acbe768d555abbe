"""Untimed runs make the decisions of timed ones."""

from dataclasses import dataclass, replace

from serving.hardware.latency import ForwardLoad
from serving.messages import Outcome, Work
from serving.outcomes.offline import CONCURRENT_SESSIONS, run_untimed
from serving.policy.slots.offload import RandomOffload
from serving.runtimes import emulated
from tests.support.fake_setup import FakeEngine, models, queries, setup
from training.routing.serving_eval import routing_policy


@dataclass
class CountingEngine(FakeEngine):
    calls: int = 0

    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        self.calls += 1
        return self.pair.execute(work)[0], ()


def test_an_untimed_run_makes_the_same_decisions() -> None:
    timed = emulated.simulate(setup("sled"), models(), queries(CONCURRENT_SESSIONS + 3))
    played = run_untimed(
        setup("sled").policy, models(), queries(CONCURRENT_SESSIONS + 3), 0, lambda done, total, note: None
    )
    assert {n: r.tokens for n, r in played.items()} == {n: r.tokens for n, r in timed.items()}
    chunks = {n: [c.accepted for c in r.draft_decisions] for n, r in played.items()}
    assert chunks == {n: [c.accepted for c in r.draft_decisions] for n, r in timed.items()}


def test_a_device_that_batches_drafts_makes_the_same_decisions_in_fewer_forwards() -> None:
    policy = routing_policy(RandomOffload(0.3))
    found = []
    for batched in (False, True):
        counted = CountingEngine()
        pair = replace(models(), device=counted)
        records = run_untimed(policy, pair, queries(24), 0, lambda done, total, note: None, batch_drafts=batched)
        found.append(({name: (one.tokens, one.origins) for name, one in records.items()}, counted.calls))
    (alone, calls), (together, fewer) = found
    assert together == alone
    assert len({origin for _, origins in alone.values() for origin in origins}) > 1
    assert fewer < calls / 4


def test_an_untimed_run_reports_progress() -> None:
    told: list[tuple[int, int]] = []
    run_untimed(setup("sled").policy, models(), queries(3), 0, lambda done, total, note: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
