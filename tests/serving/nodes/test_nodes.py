"""Device and cloud together: every policy, prompt length, link loss and ending; wrong tokens reveal mistakes."""

import pytest

from serving.drivers.simulator import ComputeResource
from serving.messages import (
    DraftDecision,
    DraftWork,
    EmitTokens,
    ForwardWork,
    PeerLost,
    PeerRestored,
    SendMessage,
    SessionCancelled,
    StartWork,
)
from serving.policy.slots.kv_cache import NoPrefixCaching, PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.prefill import ChunkedPrefill, WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch, StaticBatch, VerificationAware
from tests.support.fake_pair import own_text
from tests.support.policies import POLICIES, policy
from tests.support.simulated_nodes import World, world

LOSSLESS = [name for name in POLICIES if policy(name).lossless]
CLOUD = [name for name in POLICIES if name != "edge_centric"]


def assert_complete(w: World, lossless: bool) -> None:
    assert w.endings() == {c.session: "complete" for c in w.calls}
    for call in w.calls:
        text = w.text(call.session)
        own = own_text(call.prompt, call.max_new_tokens, call.stop_tokens)
        if lossless:
            assert text == own
        assert len(text) == call.max_new_tokens or text[-1] in call.stop_tokens
    assert w.replays()


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("prompt", [1, 2, 33])
@pytest.mark.parametrize("limit", [1, 2, 17])
def test_every_policy_answers_every_prompt_shape(name: str, prompt: int, limit: int) -> None:
    assert_complete(world(policy(name), prompt=prompt, limit=limit).run(), name in LOSSLESS)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_every_policy_answers_at_acceptance_0_and_1(name: str, alpha: float) -> None:
    assert_complete(world(policy(name), alpha=alpha).run(), name in LOSSLESS or alpha == 1.0)


def test_cloud_centric_and_sled_are_the_lossless_test_policies() -> None:
    assert LOSSLESS == ["cloud_centric", "sled"]


@pytest.mark.parametrize("name", POLICIES)
def test_text_ends_at_an_end_token(name: str) -> None:
    alone = world(policy("edge_centric"), alpha=1.0).run()
    ends = (alone.text("s0.0")[9],)
    w = world(policy(name), alpha=1.0, ends=ends).run()
    assert_complete(w, lossless=True)
    assert len(w.text("s0.0")) <= 10


@pytest.mark.parametrize("name", POLICIES)
def test_a_device_serves_its_requests_one_after_the_other(name: str) -> None:
    w = world(policy(name), devices=2, calls_each=3).run()
    assert_complete(w, name in LOSSLESS)
    order = [d.session for d in w.log.commands(EmitTokens) if d.ending and d.session.startswith("s0")]
    assert order == ["s0.0", "s0.1", "s0.2"]


@pytest.mark.parametrize("name", CLOUD)
@pytest.mark.parametrize(
    "scheduler",
    [StaticBatch(2, 0.02), ContinuousBatch(), ContinuousBatch(chunk_tokens=8), VerificationAware(chunk_tokens=8)],
)
@pytest.mark.parametrize(
    "prefill", [WholePrefill("lazy"), WholePrefill("ahead"), WholePrefill("first"), ChunkedPrefill(7)]
)
def test_schedulers_and_prefills_go_with_every_policy(name: str, scheduler: object, prefill: object) -> None:
    assert_complete(world(policy(name, scheduler=scheduler, prefill=prefill), prompt=40).run(), name in LOSSLESS)


@pytest.mark.parametrize("name", CLOUD)
def test_ended_sessions_leave_nothing_on_worker_or_chips(name: str) -> None:
    w = world(policy(name), devices=3, calls_each=2).run()
    worker = w.nodes["cloud"]
    assert not worker.queue
    assert not worker.kv_accounting.cached_lens
    assert not worker.session_tokens
    assert not worker.retained_requests
    assert not any(chip.caches for chip in w.chips.values())


def test_a_cached_prefix_is_never_computed_again() -> None:
    reuse, anew = (
        world(policy("sled", kv_cache=kv), devices=1, limit=40).run() for kv in (PrefixCaching(), NoPrefixCaching())
    )
    chunks = reuse.chunks()
    corrections = len(chunks) - 1  # each verdict but the last is followed by a question that feeds its token
    assert reuse.chips["cloud"].num_tokens_run == 12 + corrections + sum(len(c.tokens) for c in chunks)
    assert anew.chips["cloud"].num_tokens_run > 3 * reuse.chips["cloud"].num_tokens_run
    assert anew.text("s0.0") == reuse.text("s0.0")


def test_accepted_drafts_are_not_sent_again() -> None:
    w = world(policy("sled", kv_cache=PrefixCaching()), devices=1, alpha=0.8, limit=40).run()
    plain = [
        r.num_tokens - r.num_drafts
        for s in w.log.commands(StartWork)
        if isinstance(s.work, ForwardWork)
        for r in s.work.slices
    ]
    assert plain[0] == 12
    assert set(plain[1:]) == {1}


def test_a_device_feeds_each_token_once() -> None:
    w = world(policy("edge_centric"), devices=1, limit=30).run()
    fed = [len(s.work.input_tokens) for s in w.log.commands(StartWork) if isinstance(s.work, DraftWork)]
    assert fed == [12] + [1] * 29


@pytest.mark.parametrize("name", CLOUD)
def test_evicted_sessions_are_answered_correctly(name: str) -> None:
    w = world(policy(name, kv_cache=PrefixCaching(90.0)), devices=4, limit=30)
    assert_complete(w.run(), name in LOSSLESS)


@pytest.mark.parametrize("name", CLOUD)
def test_a_restarted_cloud_gets_all_tokens_again(name: str) -> None:
    w = world(policy(name), limit=40)
    w.simulator.run(0.3)
    w.simulator.add("cloud", w.make["cloud"](), ComputeResource(w.chips["cloud"]))
    w.chips["cloud"].caches.clear()
    for i in range(3):
        w.simulator.post(0.3, f"device-{i}", PeerLost("cloud"))
        w.simulator.post(0.4, f"device-{i}", PeerRestored("cloud"))
    w.simulator.run()
    assert set(w.endings().values()) == {"complete"}
    for call in w.calls:
        assert len(w.text(call.session)) == 40
        if name in LOSSLESS:
            assert w.text(call.session) == own_text(call.prompt, 40)


def lose_cloud(w: World, at: float) -> World:
    w.simulator.run(at)
    for i in range(3):
        w.simulator.post(at, f"device-{i}", PeerLost("cloud"))
    w.simulator.run()
    return w


def test_with_link_loss_local_the_device_finishes_with_origin_offline() -> None:
    w = lose_cloud(world(policy("sled", link_loss=LinkLoss("local")), limit=40), 0.3)
    assert set(w.endings().values()) == {"complete"}
    origins = [o for d in w.log.commands(EmitTokens) for o in d.origins]
    assert origins.count("offline") > 0
    assert origins.count("accepted") > 0


def test_with_link_loss_fail_a_lost_cloud_fails_the_sessions() -> None:
    w = lose_cloud(world(policy("sled", link_loss=LinkLoss("fail")), limit=40), 0.3)
    assert set(w.endings().values()) == {"failed"}


def test_with_link_loss_wait_sessions_wait_for_a_lost_cloud() -> None:
    assert lose_cloud(world(policy("sled"), limit=40), 0.3).endings() == {}


@pytest.mark.parametrize("name", POLICIES)
def test_cancelling_ends_one_session_only(name: str) -> None:
    w = world(policy(name), calls_each=2, limit=30)
    w.simulator.run(0.1)
    w.simulator.post(0.1, "device-0", SessionCancelled("s0.0"))
    w.simulator.post(0.1, "device-1", SessionCancelled("s1.1"))
    w.simulator.run()
    gone = [s for s, ending in w.endings().items() if ending == "cancelled"]
    assert gone == ["s1.1", "s0.0"] or gone == ["s0.0", "s1.1"]
    assert len(w.endings()) == 6


def test_two_runs_have_equal_logs() -> None:
    for name in POLICIES:
        assert world(policy(name)).run().log.entries == world(policy(name)).run().log.entries


def test_every_verified_draft_has_a_draft_decision() -> None:
    w = world(policy("synera"), devices=4, limit=60).run()
    judged = [c for c in w.log.commands(DraftDecision) if c.accepted is not None]
    kept = [c for c in w.log.commands(DraftDecision) if c.accepted is None]
    assert judged
    assert kept
    asked = [c for c in w.log.commands(SendMessage) if getattr(getattr(c.message, "slice", None), "num_drafts", 0)]
    assert len(asked) == len(judged)
