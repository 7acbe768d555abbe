"""The requests of a device to its cloud, and its behaviour when the cloud is lost at any moment."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from serving.core.session import Session
from serving.learned.thresholds import Thresholds
from serving.messages import (
    CacheMiss,
    DraftOutcome,
    DraftWork,
    DropCache,
    GenerationRequest,
    Hop,
    MessageReceived,
    PeerLost,
    PeerRestored,
    Reply,
    Request,
    RequestArrived,
    SendMessage,
    SessionCancelled,
    SetTimer,
    Span,
    StartWork,
    TimerFired,
    Verdict,
    WorkFinished,
)
from serving.nodes.device import Device
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.importance_offload import SyneraOffload
from serving.policy.slots.kv_cache import NoPrefixCaching, PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.prefill import ChunkedPrefill
from serving.policy.slots.verify import Replace
from tests.support.fake_pair import FakePair, extend, own_text
from tests.support.policies import policy
from tests.support.simulated_nodes import world

MOMENTS = [i * 0.013 for i in range(30)]


@pytest.mark.parametrize("at", MOMENTS)
@pytest.mark.parametrize("action", ["fail", "local"])
def test_every_request_ends_whenever_the_cloud_is_lost(at: float, action: str) -> None:
    """Also while no verdict is awaited: the loss shows when the next request is due."""
    w = world(policy("sled", link_loss=LinkLoss(action), kv_cache=PrefixCaching()), devices=1, limit=30)  # type: ignore[arg-type]
    w.simulator.run(at)
    w.simulator.post(at, "device-0", PeerLost("cloud"))
    w.simulator.run()
    assert w.endings() == {"s0.0": "failed" if action == "fail" else "complete"}


@pytest.mark.parametrize("at", MOMENTS)
def test_a_short_loss_changes_no_token(at: float) -> None:
    w = world(policy("sled", kv_cache=PrefixCaching()), devices=1, limit=30)
    w.simulator.run(at)
    w.simulator.post(at, "device-0", PeerLost("cloud"))
    w.simulator.post(at + 0.05, "device-0", PeerRestored("cloud"))
    w.simulator.run()
    assert w.endings() == {"s0.0": "complete"}
    assert w.text("s0.0") == own_text(w.calls[0].prompt, 30)


def test_a_session_without_a_cloud_fails_with_link_loss_fail() -> None:
    w = world(policy("sled", link_loss=LinkLoss("fail")), devices=1)
    w.nodes["device-0"].handle(PeerLost("cloud"), 0.0)
    assert w.run().endings() == {"s0.0": "failed"}


def test_sent_drafts_are_the_drafters_continuation() -> None:
    """Verification hides a drafter that was fed wrongly: its text stays right and only its acceptance falls."""
    w = world(policy("synera", prefill=ChunkedPrefill(5)), alpha=0.5, limit=60).run()
    pair, seen = FakePair(alpha=0.5), {c.session: list(c.prompt) for c in w.calls}
    checked = 0
    for chunk in w.chunks():
        prefix = prefix_of(w.text(chunk.session), seen[chunk.session], chunk.position)
        for token in chunk.tokens:
            assert token == pair.drafter_token(prefix)
            prefix = extend(prefix, token)
            checked += 1
    assert checked > 50


def prefix_of(text: tuple[int, ...], prompt: list[int], at: int) -> int:
    prefix = 1
    for token in [*prompt, *text][:at]:
        prefix = extend(prefix, token)
    return prefix


def test_nothing_is_sent_after_the_sequence_exit_or_without_budget() -> None:
    none = SyneraOffload(0.0, Thresholds(0.6, 0.7, (0.5,), (0.5,), {}))
    w = world(policy("synera", offload=none), devices=1, limit=30).run()
    assert not [s for s in w.log.commands(SendMessage) if isinstance(s.message, Request)]


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 9])
def test_no_draft_is_longer_than_the_rest_of_the_answer(limit: int) -> None:
    w = world(policy("sled", draft=WindowDraft(4)), alpha=1.0, devices=1, limit=limit).run()
    caps = [s.work.stop_rule.max_tokens for s in w.log.commands(StartWork) if isinstance(s.work, DraftWork)]
    assert max(caps) == min(4, limit)
    assert len(w.text("s0.0")) == limit


def test_the_prompt_is_sent_in_chunks_and_the_drafts_whole() -> None:
    w = world(policy("sled", prefill=ChunkedPrefill(5, "lazy"), kv_cache=PrefixCaching()), devices=1, prompt=12).run()
    asked = [s.message.slice for s in w.log.commands(SendMessage) if isinstance(s.message, Request)]
    assert [(r.start, r.num_tokens, r.num_drafts, r.rule) for r in asked[:3]] == [
        (0, 5, 0, ""),
        (5, 5, 0, ""),
        (10, 6, 4, "greedy"),
    ]


def test_a_request_has_a_header_and_four_bytes_per_token() -> None:
    w = world(policy("sled", kv_cache=PrefixCaching()), devices=1, prompt=12).run()
    first, second = [s for s in w.log.commands(SendMessage) if isinstance(s.message, Request)][:2]
    assert (first.nbytes, second.nbytes) == (16 + 4 * (12 + 4), 16 + 4 * (1 + 4))


@pytest.mark.parametrize("timeout_s", [0.005, 0.02, 0.06, 0.5])
@pytest.mark.parametrize("capacity_tokens", [float("inf"), 50])
def test_a_short_reply_timeout_still_gets_an_answer(timeout_s: float, capacity_tokens: float) -> None:
    """Each retry supersedes the one before: with a constant timeout below the service time no request would finish."""
    w = world(policy("sled", kv_cache=PrefixCaching()), limit=20, timeout_s=timeout_s, capacity_tokens=capacity_tokens)
    w.simulator.run(60.0)
    assert set(w.endings().values()) == {"complete"}
    assert len(w.endings()) == 3
    assert all(w.text(c.session) == own_text(c.prompt, 20) for c in w.calls)


def waits(device: Device, times: int, now: float) -> list[float]:
    """How long a device with a question in flight waits, retry by retry, for an answer that never comes."""
    found = []
    for _ in range(times):
        requester = device.active_requester
        assert requester is not None
        wake = next(c for c in device.handle(TimerFired(requester.timer), now) if isinstance(c, SetTimer))
        found.append(wake.due_s - now)
        now = wake.due_s
    return found


def asking(timeout_s: float) -> tuple[Device, float]:
    p = policy("sled")
    device = Device("d", p, p.placement.hops(8, 8), {"cloud": ("cloud",)}, 0, timeout_s)
    device.handle(RequestArrived(GenerationRequest("s", (1, 2, 3), 20)), 0.0)
    out = device.handle(WorkFinished(1, DraftOutcome((1, 2, 3, 4), {}, ((),) * 4, False, 6)), 1.0)
    return device, next(c.due_s for c in out if isinstance(c, SetTimer))


@pytest.mark.parametrize(
    ("timeout_s", "waited"),
    [(1.0, [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]), (40.0, [60.0, 60.0]), (90.0, [90.0, 90.0])],
)
def test_the_reply_timeout_doubles_with_each_retry_up_to_a_minute(timeout_s: float, waited: list[float]) -> None:
    device, due = asking(timeout_s)
    device.handle(TimerFired(device.active_requester.timer), 0.5)  # type: ignore[union-attr]  # too early: waits on
    assert due == 1.0 + timeout_s
    assert waits(device, len(waited), due + timeout_s) == pytest.approx(waited)


def test_a_reply_resets_the_reply_timeout() -> None:
    device, due = asking(1.0)
    assert waits(device, 3, due)[-1] == pytest.approx(8.0)
    device.handle(MessageReceived(Reply("s", 3, 3, Verdict(4, 9), ("cloud",), 0)), 14.0)
    job = device.active_requester.job  # type: ignore[union-attr]
    out = device.handle(WorkFinished(job, DraftOutcome((1, 2, 3, 4), {}, ((),) * 4, False, 11)), 14.5)
    assert [c.due_s for c in out if isinstance(c, SetTimer)] == [15.5]


def test_a_session_sets_one_timer_for_all_its_requests() -> None:
    w = world(policy("sled", kv_cache=PrefixCaching()), devices=1, limit=60, timeout_s=30.0).run()
    assert len([m for m in w.log.commands(SendMessage) if isinstance(m.message, Request)]) > 10
    assert len([c for n, _, _, said in w.log.entries for c in said if n == "device-0" and isinstance(c, SetTimer)]) == 1


def test_a_cache_miss_of_a_later_attempt_is_retried_above_it() -> None:
    device, _ = asking(1.0)
    out = device.handle(MessageReceived(CacheMiss("s", 1024, "cloud")), 1.5)
    assert [c.message.attempt for c in out if isinstance(c, SendMessage) and isinstance(c.message, Request)] == [1025]


def test_time_offline_does_not_count_as_failed_attempts() -> None:
    device, due = asking(1.0)
    waits(device, 2, due)  # the first vain attempts
    device.handle(PeerLost("cloud"), 10.0)
    out = device.handle(PeerRestored("cloud"), 10_000.0)
    assert any(isinstance(c, SendMessage) and isinstance(c.message, Request) for c in out)
    assert device.active_requester is not None
    assert device.active_requester.state == "running"


def test_a_peer_that_is_lost_for_two_causes_is_back_when_both_have_ended() -> None:
    """An outage of the link ends while its node is down: the device goes on alone."""
    device = Device("device-0", policy("sled", link_loss=LinkLoss("local")), HOPS, {}, 0)
    device.handle(PeerLost("cloud"), 0.2)
    device.handle(PeerLost("cloud", "link"), 0.3)
    assert device.handle(PeerRestored("cloud", "link"), 0.5) == []
    assert not device.hop_path.reachable()
    device.handle(PeerRestored("cloud"), 40.0)
    assert device.hop_path.reachable()


def test_the_downlink_of_a_cloud_that_starts_again_is_measured_anew() -> None:
    device = Device("device-0", policy("hat"), HOPS, {}, 0)
    device.monitor.downlink.update(100, 0.0, 1.0)
    device.monitor.downlink.update(1_000_100, 1.0, 3.0)
    device.handle(PeerLost("cloud", "link"), 4.0)
    assert device.monitor.downlink.mbps == pytest.approx(8.0)
    device.handle(PeerLost("cloud"), 4.0)
    assert device.monitor.downlink.mbps == 0.0


IMPOSSIBLE = [Verdict(1000, 5), Verdict(1, 5, (99,)), Verdict(0, 5, (4,))]


@pytest.mark.parametrize("verdict", IMPOSSIBLE)
def test_a_verdict_on_drafts_that_were_not_sent_is_a_failed_attempt(verdict: Verdict) -> None:
    device = Device("device-0", policy("sled", link_loss=LinkLoss("wait")), HOPS, {}, 0)
    sent = device.handle(RequestArrived(GenerationRequest("s", tuple(range(9)), 10)), 0.0)
    while not (asked := [c.message for c in sent if isinstance(c, SendMessage) and isinstance(c.message, Request)]):
        (start,) = [c for c in sent if isinstance(c, StartWork)]
        sent = device.handle(WorkFinished(start.job, FakePair().execute(start.work)[0]), 0.0)
    requester = device.active_requester
    assert requester
    assert 1 <= len(requester.session.in_flight_drafts or ()) <= 4
    attempt, num_tokens = asked[-1].attempt, len(requester.session.tokens)
    out = device.handle(MessageReceived(Reply("s", attempt, num_tokens, verdict, ("cloud",), 0)), 1.0)
    (again,) = [c.message for c in out if isinstance(c, SendMessage) and isinstance(c.message, Request)]
    assert (again.attempt, again.slice.start, requester.failed_attempts) == (attempt + 1, 0, 1)
    assert len(requester.session.tokens) == num_tokens
    assert requester.session.drafts_accepted == 0


@pytest.mark.parametrize("num_nodes", [1, 8, 70])
def test_one_break_of_the_link_sends_a_request_again_once(num_nodes: int) -> None:
    """All nodes behind the link are lost and restored at once. That is no failed attempt, be they ever so many."""
    nodes = tuple(f"cloud-{i}" for i in range(num_nodes))
    device = Device("device-0", policy("cloud_centric"), HOPS, {"cloud": nodes}, 0)
    device.handle(RequestArrived(GenerationRequest("s", tuple(range(9)), 10)), 0.0)
    for node in nodes:
        device.handle(PeerLost(node, "link"), 1.0)
    out = [c for node in nodes for c in device.handle(PeerRestored(node, "link"), 2.0)]
    assert len(_requests(out)) == 1
    assert device.active_requester is not None
    assert device.active_requester.failed_attempts == 0


def test_another_nodes_return_leaves_a_request_alone() -> None:
    device = Device("device-0", policy("cloud_centric"), HOPS, {"cloud": ("cloud-0", "cloud-1")}, 0)
    (asked,) = _requests(list(device.handle(RequestArrived(GenerationRequest("s", tuple(range(9)), 10)), 0.0)))
    (other,) = {"cloud-0", "cloud-1"} - set(asked.path)
    assert device.handle(PeerLost(other), 1.0) == []
    assert device.handle(PeerRestored(other), 2.0) == []


def test_a_later_tiers_node_that_fails_before_the_first_reply_may_have_had_the_request() -> None:
    """Which node of a later tier has it is known with the first reply. One lost before is not among them."""
    later = Hop("far", Span(4, 8, lm_head=True))
    hops = (Hop("near", Span(0, 4, embedding=True)), later)
    device = Device("device-0", policy("cloud_centric"), hops, {"near": ("near",), "far": ("far-0", "far-1")}, 0)
    device.handle(PeerLost("far-0"), 0.0)
    (asked,) = _requests(list(device.handle(RequestArrived(GenerationRequest("s", tuple(range(9)), 10)), 1.0)))
    assert device.handle(PeerRestored("far-0"), 2.0) == []
    device.handle(PeerLost("far-1"), 3.0)
    (again,) = _requests(list(device.handle(PeerRestored("far-1"), 4.0)))
    assert again.attempt > asked.attempt


def test_late_messages_of_a_forgotten_conversation_are_ignored() -> None:
    p = policy("sled")
    device = Device("d", p, p.placement.hops(8, 8), {"cloud": ("cloud",)}, 0)
    device.handle(RequestArrived(GenerationRequest("s", (1, 2, 3), 1, keep_cache=True)), 0.0)
    device.handle(WorkFinished(1, DraftOutcome((4,), {}, ((),), False, 3)), 0.0)
    device.handle(MessageReceived(Reply("s", 0, 3, Verdict(0, 9), ("cloud",), 0)), 1.0)
    assert list(device.idle_sessions) == ["s"]
    assert DropCache("s", None) in device.handle(SessionCancelled("s"), 2.0)
    device.handle(PeerLost("cloud"), 3.0)
    device.handle(PeerRestored("cloud"), 4.0)
    assert not device.idle_sessions


@pytest.mark.parametrize("acceptance", [0.0, 0.31, 1.0])
def test_a_window_says_how_much_of_a_first_draft_is_expected_to_stand(acceptance: float) -> None:
    device = Device("device-0", policy("sled", draft=WindowDraft(4, acceptance=acceptance)), HOPS, {}, 0)
    call = GenerationRequest("s", tuple(range(9)), 40, slo_tokens_per_s=8.0)
    start, *_ = device.handle(RequestArrived(call), 0.0)
    (asked,) = _requests(device.handle(WorkFinished(_job(start), _drafted(4, 12)), 0.1))
    assert asked.expected_tokens == pytest.approx(1 + 4 * acceptance)
    assert asked.slack_s == pytest.approx(asked.expected_tokens / 8 - 0.1)


def test_a_request_carries_the_remaining_slack() -> None:
    """Eq. 6 of WISP: of the time for the expected tokens, drafting and the network have had theirs."""
    device = Device("device-0", policy("sled", draft=WindowDraft(4)), HOPS, {}, 0)
    call = GenerationRequest("s", tuple(range(9)), 40, slo_tokens_per_s=8.0)
    (start, *_), now = device.handle(RequestArrived(call), 0.0), 0.1
    (asked,) = _requests(device.handle(WorkFinished(_job(start), _drafted(4, 12)), now))
    assert asked.expected_tokens == 1 + 4 * 0.5  # before anything was judged, half of the drafts is expected to stand
    assert asked.slack_s == pytest.approx(3 / 8 - 0.1)
    assert asked.slo_tokens_per_s == 8.0

    # Answered after 0.3 s of which the cloud had 0.25: the network takes 0.05. All four stood.
    reply = Reply("s", asked.attempt, 9, Verdict(4, 7), ("cloud",), 0, path_latency_s=0.25)
    (start,) = [c for c in device.handle(MessageReceived(reply), 0.4) if isinstance(c, StartWork)]
    (asked,) = _requests(device.handle(WorkFinished(_job(start), _drafted(4, 17)), 0.5))
    assert asked.expected_tokens == 1 + 4 * 8 / 12
    assert asked.slack_s == pytest.approx(asked.expected_tokens / 8 - 0.1 - 0.05)


def test_a_cache_miss_does_not_reset_the_slack() -> None:
    device = Device("device-0", policy("sled", draft=WindowDraft(4)), HOPS, {}, 0)
    (start, *_) = device.handle(RequestArrived(GenerationRequest("s", tuple(range(9)), 40, slo_tokens_per_s=8.0)), 0.0)
    (asked,) = _requests(device.handle(WorkFinished(_job(start), _drafted(4, 12)), 0.1))
    (again,) = _requests(device.handle(MessageReceived(CacheMiss("s", asked.attempt, "cloud")), 0.3))
    assert again.slack_s == pytest.approx(asked.slack_s - 0.2)


def test_the_first_token_has_its_own_slo() -> None:
    device = Device("device-0", policy("sled", draft=WindowDraft(4)), HOPS, {}, 0)
    (start, *_) = device.handle(
        RequestArrived(GenerationRequest("s", tuple(range(9)), 40, slo_tokens_per_s=8.0, slo_ttft_s=2.0)), 0.0
    )
    (asked,) = _requests(device.handle(WorkFinished(_job(start), _drafted(4, 12)), 0.1))
    assert asked.slack_s == pytest.approx(1.9)


def test_the_first_tokens_slo_counts_from_the_arrival() -> None:
    """A request that waited for another on its device has less time left."""
    device = Device("device-0", policy("sled", draft=WindowDraft(4)), HOPS, {}, 0)
    device.handle(RequestArrived(GenerationRequest("other", tuple(range(9)), 40)), 0.0)
    device.handle(RequestArrived(GenerationRequest("s", tuple(range(9)), 40, slo_ttft_s=2.0)), 0.5)
    starts = [c for c in device.handle(SessionCancelled("other"), 1.0) if isinstance(c, StartWork)]
    (asked,) = _requests(device.handle(WorkFinished(_job(starts[-1]), _drafted(4, 12)), 1.1))
    assert asked.slack_s == pytest.approx(0.5 + 2.0 - 1.1)


@dataclass(frozen=True)
class Span4:
    """The target writes four tokens at a time."""

    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ()

    def tokens_to_offload(self, session: Session) -> int:
        return min(4, session.remaining_tokens)


@pytest.mark.parametrize("keeps", [True, False])
def test_no_outcome_of_a_fill_is_thrown_away(keeps: bool) -> None:
    """Where the device keeps no cache, nothing is computed that only a cache would hold."""
    kv_cache = NoPrefixCaching(device_keeps_cache=keeps)
    p = policy("sled", draft=WindowDraft(1), offload=Span4(), verify=Replace(), kv_cache=kv_cache)
    w = world(p, devices=1, limit=24, prompt=200).run()
    works = [c.work for c in w.log.commands(StartWork) if isinstance(c.work, DraftWork)]
    fed = sum(work.num_inputs for work in works if not work.stop_rule.max_tokens)
    assert fed <= 224 * keeps
    assert w.endings() == {"s0.0": "complete"}


@dataclass(frozen=True)
class Returns:
    """An offload of a user's."""

    scope: str
    budget: Any
    requested_scores: ClassVar[tuple[str, ...]] = ()

    def tokens_to_offload(self, session: Session) -> Any:
        return self.budget


@pytest.mark.parametrize(
    ("scope", "budget", "message"),
    [
        ("some", None, r"Returns\.tokens_to_offload returned None; a whole number is wanted"),
        ("some", 0.7, r"returned 0\.7; a whole number"),
        ("some", -3, "returned -3; a whole number"),
        ("some", 2**40, "returned 1099511627776; a whole number"),
        ("all", 0, "returned 0; its scope is 'all', by which every draft is sent"),
        ("none", 1, "returned 1; its scope is 'none', by which none is sent"),
    ],
)
def test_what_an_offload_may_not_return_is_named(scope: str, budget: Any, message: str) -> None:
    """A text that the device wrote would count as the target's own, and None as a draft that is kept."""
    w = world(policy("sled", draft=WindowDraft(4), offload=Returns(scope, budget)), devices=1, limit=12)
    with pytest.raises(ValueError, match=message):
        w.run()


@pytest.mark.parametrize("budget", [True, np.int64(1)])
def test_a_whole_number_of_another_type_is_one(budget: Any) -> None:
    w = world(policy("sled", draft=WindowDraft(4), offload=Returns("all", budget)), devices=1, limit=12).run()
    assert w.endings() == {"s0.0": "complete"}


HOPS = (Hop("cloud", Span(0, 4, embedding=True, lm_head=True)),)


def _job(command: object) -> int:
    assert isinstance(command, StartWork)
    return command.job


def _drafted(n: int, cached: int) -> DraftOutcome:
    return DraftOutcome(tuple(range(n)), {}, ((1, 2, 3),) * n, False, cached)


def _requests(commands: object) -> list[Request]:
    assert isinstance(commands, list)
    return [c.message for c in commands if isinstance(c, SendMessage) and isinstance(c.message, Request)]
