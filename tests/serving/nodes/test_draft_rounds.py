"""What a device learns from its rounds, and what it then does."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from serving.core.draft_round import DraftRound
from serving.messages import PeerLost, PeerRestored
from serving.policy.slots.delay_draft import DelayAdaptiveDraft, UCBSpecStop
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.placement import ColocatedPlacement
from tests.support.fake_pair import own_text
from tests.support.policies import policy
from tests.support.simulated_nodes import World, world


@dataclass
class Rounds:
    """Keeps what it is told."""

    done: list[DraftRound] = field(default_factory=list)

    def record(self, done: DraftRound) -> None:
        self.done.append(done)


@dataclass(frozen=True)
class Watched(WindowDraft):
    """A window whose rounds are kept."""

    requested_scores: ClassVar[tuple[str, ...]] = ("confidence",)  # type: ignore[misc]

    def new_learner(self) -> Rounds:
        return Rounds()


def learned(w: World) -> Any:
    return w.devices["device-0"].monitor.learner


def test_a_device_reports_the_rounds_of_all_its_sessions_but_each_first_one():
    w = world(policy("sled", draft=Watched(3)), devices=1, calls_each=2, delay_s=0.1).run()
    by_session = {call.session: [c for c in w.chunks() if c.session == call.session] for call in w.calls}
    rounds = learned(w).done
    assert len(rounds) == sum(len(chunks) - 1 for chunks in by_session.values())
    judged = [chunk for chunks in by_session.values() for chunk in chunks[1:]]
    assert [(r.num_drafts, r.accepted) for r in rounds] == [(len(c.tokens), c.accepted) for c in judged]
    assert [r.confidence for r in rounds] == [list(c.scores["confidence"]) for c in judged]


def test_a_round_begins_with_the_last_verdict_and_ends_with_its_own():
    """Its parts are the chip's drafting, three steps of 10 ms and a few tokens fed, and a round trip of 200 ms."""
    w = world(policy("sled", draft=Watched(3)), devices=1, delay_s=0.1).run()
    times = [now for _, _, now, commands in w.log.entries for c in commands if type(c).__name__ == "EmitTokens"]
    rounds = learned(w).done
    assert sum(r.draft_s + r.away_s for r in rounds) == pytest.approx(times[-1] - times[0])
    assert all(0.03 <= r.draft_s < 0.034 for r in rounds if r.num_drafts == 3)
    assert all(0.2 < r.away_s < 0.25 for r in rounds)


def test_a_round_with_a_lost_attempt_is_not_reported():
    w = world(policy("sled", draft=Watched(3)), devices=1, limit=40, delay_s=0.1)
    w.simulator.run(0.55)
    before = len(learned(w).done)
    w.simulator.post(0.56, "device-0", PeerLost("cloud"))
    w.simulator.post(9.0, "device-0", PeerRestored("cloud"))
    w.run()
    assert len(learned(w).done) > before > 0
    assert max(r.draft_s + r.away_s for r in learned(w).done) < 1.0


@pytest.mark.parametrize("draft", [DelayAdaptiveDraft(12), UCBSpecStop(12)])
def test_drafts_are_longer_where_the_delay_is(draft: Any):
    means = []
    for delay_s in (0.001, 0.4):
        w = world(policy("sled", draft=draft), devices=1, calls_each=12, limit=40, alpha=0.9, delay_s=delay_s).run()
        assert all(w.text(call.session) == own_text(call.prompt, 40) for call in w.calls)
        lengths = [len(chunk.tokens) for chunk in w.chunks()]
        means.append(sum(lengths[20:]) / len(lengths[20:]))
    assert means[1] > means[0] + 2


@pytest.mark.parametrize("draft", [DelayAdaptiveDraft(12), UCBSpecStop(12)])
def test_sessions_that_share_a_device_or_a_server_learn_together(draft: Any):
    """They draft one token a job, and a verdict of one comes while another drafts."""
    for placement in ({}, {"placement": ColocatedPlacement(), "batch_drafts": True}):
        w = world(policy("sled", draft=draft, **placement), devices=3, calls_each=3, at_once=3).run()
        assert all(w.text(call.session) == own_text(call.prompt, 24) for call in w.calls)
        assert w.replays()
