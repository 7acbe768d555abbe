"""A server that drafts and verifies: restarts, duplicates, releases, evictions, drafts that fail, retries."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from native import loader
from serving.drivers.simulator import ComputeResource, Simulator
from serving.messages import (
    INF,
    CacheMiss,
    Command,
    Commands,
    DraftBatch,
    DropCache,
    EmitTokens,
    Event,
    ForwardWork,
    GenerationRequest,
    MessageReceived,
    PeerLost,
    PeerRestored,
    Reply,
    Request,
    RequestArrived,
    SendMessage,
    SessionCancelled,
    StartWork,
)
from serving.metrics.recorder import Recorder
from serving.metrics.utilisation import stall_times
from serving.nodes.speculator import Speculator
from serving.policy.slots.draft import GoodputDraft, LookupDraft, MedusaDraft, WindowDraft
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.placement import ColocatedPlacement
from serving.policy.slots.prefill import WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch, StaticBatch
from serving.policy.slots.verify import TreeVerify
from tests.support.fake_pair import own_text
from tests.support.policies import MEDUSA, policy
from tests.support.simulated_nodes import World, failing, world

TIMES = [0.006 * i for i in range(60)]
"""From the first request's arrival to the middle of the answers."""


def colocated(**override: Any) -> Any:
    choices: dict[str, Any] = {
        "placement": ColocatedPlacement(),
        "kv_cache": PrefixCaching(),
        "scheduler": ContinuousBatch(),
        "prefill": WholePrefill("first"),
        "batch_drafts": True,
    }
    return policy("sled", **choices | override)


APART: dict[str, Any] = {"placement": ColocatedPlacement(drafter="apart")}
TREE: dict[str, Any] = {"draft": MedusaDraft(MEDUSA), "verify": TreeVerify()}


def server(w: World) -> Speculator:
    node = w.nodes["cloud"]
    assert isinstance(node, Speculator)
    return node


def queue_of(w: World) -> Any:
    return server(w).device.compute_queue


def right(w: World, *sessions: str) -> bool:
    """True if these sessions (all) have ended with the target's text."""
    calls = [call for call in w.calls if not sessions or call.session in sessions]
    return all(
        w.endings().get(call.session) == "complete"
        and w.text(call.session) == own_text(call.prompt, call.max_new_tokens, call.stop_tokens)
        for call in calls
    )


def say(w: World, node: str, *events: Event) -> None:
    for event in events:
        w.simulator.post(w.simulator.now, node, event)


def lose_and_restore(w: World, device: str = "device-0") -> None:
    """The device loses the cloud for an instant: it sends its request again as a new attempt."""
    say(w, device, PeerLost("cloud"), PeerRestored("cloud"))


def requests(w: World) -> list[Request]:
    return [c.message for c in w.log.commands(SendMessage) if isinstance(c.message, Request)]


def misses(w: World) -> list[CacheMiss]:
    return [c.message for c in w.log.commands(SendMessage) if isinstance(c.message, CacheMiss)]


def assert_nothing_left(w: World) -> None:
    node = server(w)
    assert not node.answers
    assert not node.device.active
    assert not node.device.idle_sessions
    assert not node.worker.kv_accounting.cached_lens
    assert not any(pair.caches for pair in w.chips.values())


# Answers.


@pytest.mark.parametrize("draft", [WindowDraft(4), GoodputDraft(6), LookupDraft(3)])
def test_the_answer_is_the_targets_and_all_of_it_is_the_clouds(draft: Any) -> None:
    w = world(colocated(draft=draft)).run()
    assert right(w)
    origins = [origin for c in w.log.commands(EmitTokens) for origin in c.origins]
    assert set(origins) <= {"cloud_accepted", "corrected", "bonus", "cloud"}
    assert "cloud_accepted" in origins or isinstance(draft, LookupDraft)
    assert_nothing_left(w)


def test_drafting_in_the_cloud_is_a_stall_of_the_device_and_no_work_of_its_own() -> None:
    w = world(colocated(), devices=1)
    recorder = Recorder(["device-0"])
    w.simulator.set_observers((w.log, recorder))
    w.run()
    (record,) = recorder.records.values()
    lanes = {lane for lane, *_ in record.timeline}
    assert "cloud_draft" in lanes
    assert "draft" not in lanes
    assert record.ended_s is not None
    busy_s = sum(end - begin for lane, begin, end, _ in record.timeline if lane in ("cloud_draft", "verify", "prefill"))
    assert stall_times(record.timeline, record.ended_s).cloud_s == pytest.approx(busy_s)


def busy(w: World) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """When the cloud's chips draft, and when they run the target."""
    recorder = Recorder([name for name in w.nodes if name.startswith("device")])
    w.simulator.set_observers((w.log, recorder))
    w.run()
    lanes = [each for record in recorder.records.values() for each in record.timeline]
    drafting = {(begin, end) for lane, begin, end, _ in lanes if lane == "cloud_draft"}
    return sorted(drafting), sorted({(begin, end) for lane, begin, end, _ in lanes if lane in ("verify", "prefill")})


def overlaps(spans: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]) -> int:
    return sum(a < d - 1e-9 and c < b - 1e-9 for a, b in spans for c, d in others if (a, b) != (c, d))


@pytest.mark.parametrize("draft", [WindowDraft(4), GoodputDraft(6)])
def test_a_draft_model_on_chips_of_its_own_drafts_for_some_while_others_are_verified(draft: Any) -> None:
    shared, apart = world(colocated(draft=draft), devices=4), world(colocated(draft=draft, **APART), devices=4)
    drafting, verifying = busy(shared)
    assert overlaps(drafting, verifying) == 0
    drafting, verifying = busy(apart)
    assert overlaps(drafting, verifying) > 0
    assert overlaps(drafting, drafting) == overlaps(verifying, verifying) == 0
    assert right(apart)
    assert apart.text("s0.0") == shared.text("s0.0")
    assert_nothing_left(apart)


def test_with_one_session_a_second_chip_changes_nothing() -> None:
    shared, apart = (
        world(colocated(draft=WindowDraft(4)), devices=1),
        world(colocated(draft=WindowDraft(4), **APART), devices=1),
    )
    assert busy(shared) == busy(apart)


# Attempts.


def test_duplicates_and_older_attempts_are_ignored() -> None:
    w = world(colocated(), devices=1)
    w.simulator.run(0.05)
    (request,) = requests(w)
    later = replace(request, attempt=3)
    first = server(w).device.active["s0.0"]
    assert server(w).handle(MessageReceived(request), 0.05) == []
    assert server(w).device.active["s0.0"] is first
    server(w).handle(MessageReceived(later), 0.05)
    second = server(w).device.active["s0.0"]
    assert second is not first
    for late in (replace(request, attempt=2), later):
        assert server(w).handle(MessageReceived(late), 0.05) == []
        assert server(w).device.active["s0.0"] is second
    assert server(w).answers["s0.0"].attempt == 3


def restart_device(w: World) -> None:
    w.nodes["device-0"] = w.make["device-0"]()
    w.simulator.add("device-0", w.nodes["device-0"], ComputeResource(w.chips["device-0"]))


@pytest.mark.parametrize("at", [0.1, 0.2, 0.3])
def test_a_restarted_device_counts_attempts_from_0(at: float) -> None:
    """It is answered at once, though the answer that the cloud still writes is one of a later attempt."""
    w = world(colocated(), devices=1, limit=40)
    w.simulator.run(at - 0.05)
    lose_and_restore(w)
    w.simulator.run(at)
    assert server(w).answers["s0.0"].attempt > 0
    say(w, "cloud", PeerLost("device-0"), PeerRestored("device-0"))
    w.simulator.run(at + 0.01)
    restart_device(w)
    w.log.entries.clear()
    say(w, "device-0", RequestArrived(w.calls[0]))
    w.simulator.run(at + 10)
    assert right(w)


def test_the_sessions_of_a_lost_device_are_kept_for_the_lease_and_then_freed() -> None:
    w = world(colocated(), devices=2, keep_cache=True)
    w.simulator.run(0.3)
    say(w, "cloud", PeerLost("device-0"))
    w.simulator.run(0.3 + 29)
    assert set(server(w).answers) >= {"s0.0"}
    w.simulator.run(0.3 + 31)
    assert set(server(w).answers) == set(server(w).device.idle_sessions) == {"s1.0"}
    assert "s0.0" not in {session for session, _ in w.chips["cloud"].caches}


# Releases and evictions.


@pytest.mark.parametrize("apart", [{}, APART])
@pytest.mark.parametrize("at", TIMES)
def test_a_cancelled_session_is_freed_whatever_runs(at: float, apart: dict[str, Any]) -> None:
    """Others' answers go on, though the cancelled session's draft may wait while their last draft runs."""
    w = world(colocated(**apart), devices=3)
    w.simulator.run(at)
    say(w, "device-1", SessionCancelled("s1.0"))
    w.simulator.run(60)
    assert right(w, "s0.0", "s2.0")
    assert w.endings()["s1.0"] == "cancelled" or not at  # it had not come
    assert_nothing_left(w)


@pytest.mark.parametrize(("batch_drafts", "apart"), [(True, {}), (False, {}), (True, APART)])
@pytest.mark.parametrize("at", TIMES)
def test_a_retried_session_continues_whatever_runs(at: float, batch_drafts: bool, apart: dict[str, Any]) -> None:
    w = world(colocated(batch_drafts=batch_drafts, **apart), devices=3)
    w.simulator.run(at)
    lose_and_restore(w, "device-1")
    w.simulator.run(60)
    assert right(w)
    assert_nothing_left(w)


@pytest.mark.parametrize("kind", ["cancel", "retry"])
@pytest.mark.parametrize("batch_drafts", [True, False])
@pytest.mark.parametrize("at", [0.003 + 0.001 * i for i in range(9)])
def test_a_draft_that_nothing_awaits_any_more_holds_no_batch(at: float, batch_drafts: bool, kind: str) -> None:
    """Session 1's first draft waits behind session 0's only one when session 1 leaves."""
    w = world(colocated(draft=WindowDraft(1), prefill=WholePrefill(), batch_drafts=batch_drafts), devices=2, limit=2)
    w.simulator.run(at)
    if kind == "cancel":
        say(w, "device-1", SessionCancelled("s1.0"))
    else:
        lose_and_restore(w, "device-1")
    w.simulator.run(60)
    assert right(w, "s0.0", *(["s1.0"] if kind == "retry" else []))
    assert_nothing_left(w)


@pytest.mark.parametrize("window_s", [0.0, 0.03])
@pytest.mark.parametrize("at", TIMES[::6])
def test_a_retry_with_a_tree_writes_the_same_text(at: float, window_s: float) -> None:
    """Also where the request that names the accepted drafts has not run yet."""
    w = world(colocated(**TREE, scheduler=StaticBatch(8, window_s)), devices=3, alpha=0.9, limit=40)
    for step in range(3):
        w.simulator.run(at + 0.05 * step)
        lose_and_restore(w)
    w.simulator.run(60)
    assert right(w)


def talk(w: World, session: str, prompt: Sequence[int]) -> tuple[int, ...]:
    """One turn of a conversation, whose caches are kept. Returns the answer."""
    w.log.entries.clear()
    say(w, "device-0", RequestArrived(GenerationRequest(session, tuple(prompt), 8, keep_cache=True)))
    w.run()
    assert (w.text(session), w.endings()[session]) == (own_text(tuple(prompt), 8), "complete")
    return w.text(session)


@pytest.mark.parametrize("draft", [WindowDraft(4), MedusaDraft(MEDUSA)])
def test_a_second_turn_continues_the_first(draft: Any) -> None:
    tree = TREE if isinstance(draft, MedusaDraft) else {"draft": draft}
    for prompt in range(9):
        w = world(colocated(**tree), devices=1, calls_each=0, alpha=0.9)
        answer = talk(w, "a", range(prompt, 20))
        talk(w, "a", (*range(prompt, 20), *answer, 7, 8))
        assert not misses(w)


def test_an_idle_session_whose_caches_are_evicted_is_forgotten_and_sent_again() -> None:
    """Both models' caches go, since the memory that is counted holds both."""
    w = world(colocated(), devices=1, calls_each=0, capacity_tokens=80)
    answer = talk(w, "a", range(40))
    talk(w, "b", range(50, 90))
    evicted = [c for c in w.log.commands(DropCache) if c.session == "a"]
    assert {c.start_layer for c in evicted} == {0, None}
    assert set(server(w).device.idle_sessions) == {session for session, _ in w.chips["cloud"].caches} == {"b"}
    talk(w, "a", (*range(40), *answer, 7))
    assert [miss.session for miss in misses(w)] == ["a"]
    assert [request.slice.start for request in requests(w)][-1] == 0


@pytest.mark.parametrize("capacity_tokens", [48, 64, 80, 112])
@pytest.mark.parametrize(
    "choices",
    [{"draft": WindowDraft(4)}, {"draft": WindowDraft(4), **APART}, {"draft": GoodputDraft(6), **APART}, TREE],
)
def test_with_little_memory_sessions_take_turns(choices: dict[str, Any], capacity_tokens: int) -> None:
    w = world(colocated(**choices), devices=4, capacity_tokens=capacity_tokens, prompt=9, limit=16)
    w.simulator.run(600)
    assert right(w)
    assert_nothing_left(w)
    for node, _, _, commands in w.log.entries:
        assert not [c for c in commands if isinstance(c, SendMessage) and c.to == "cloud" and node == "cloud"]
        gone = {c.session for c in commands if isinstance(c, DropCache) and c.start_layer == 0}
        assert gone <= {c.session for c in commands if isinstance(c, DropCache) and c.start_layer is None}


# What travels with a request.


@pytest.mark.parametrize("at", [0.0, 0.2])
def test_the_promised_time_of_the_next_token_reaches_the_scheduler(at: float) -> None:
    w = world(colocated(), devices=1, calls_each=0)
    say(w, "device-0", RequestArrived(GenerationRequest("a", tuple(range(9)), 40, slo_ttft_s=0.5)))
    if at:
        w.simulator.run(at)
        lose_and_restore(w)
    w.simulator.run(at + 0.022)
    slack_s = requests(w)[-1].slack_s
    assert (slack_s < INF) == (not at)  # a later attempt has emitted its first token
    (queued,) = (
        (chunks[0] for chunks in server(w).worker.queue.values())
        if not server(w).worker.running
        else (queued for queued, _ in server(w).worker.running)
    )
    assert queued.request.slack_s == pytest.approx(slack_s)


def test_a_token_rate_is_promised_across_a_retry() -> None:
    w = world(colocated(), devices=1, calls_each=0)
    say(w, "device-0", RequestArrived(GenerationRequest("a", tuple(range(9)), 40, slo_tokens_per_s=10.0)))
    w.simulator.run(0.2)
    lose_and_restore(w)
    w.simulator.run(0.222)
    request = requests(w)[-1]
    assert request.attempt > 0
    current = server(w).device.active["a"].session.request
    assert (current.slo_tokens_per_s, current.slo_ttft_s) == (10.0, request.slack_s)
    assert request.slack_s < 0.2


def token_text(token: int) -> str:
    return f"<{token}>"


def test_a_stop_string_that_a_retry_cuts_in_two_ends_the_answer() -> None:
    """Its first token is the last one before the retry. The cloud writes nothing behind it."""
    at = 0.25
    before = world(colocated(), devices=1, limit=40, token_text=token_text)
    before.simulator.run(at)
    seen = before.text("s0.0")
    assert 2 < len(seen) < 20
    own = own_text(before.calls[0].prompt, 40)
    w = world(colocated(), devices=1, calls_each=0, token_text=token_text)
    stop = f"{own[len(seen) - 1]}><{own[len(seen)]}"
    w.simulator.post(0.0, "device-0", RequestArrived(replace(before.calls[0], stop_strings=(stop,))))
    w.simulator.run(at)
    assert w.text("s0.0") == seen
    lose_and_restore(w)
    w.simulator.run(60)
    assert w.endings() == {"s0.0": "complete"}
    assert w.text("s0.0") == own[: len(seen) + 1]
    replies = [c.message for c in w.log.commands(SendMessage) if isinstance(c.message, Reply)]
    last = [reply for reply in replies if reply.attempt == replies[-1].attempt]
    assert [token for reply in last for token in (*reply.written, reply.verdict.next_token)] == [own[len(seen)]]
    assert last[-1].remaining_budget == 0


# Drafts that fail.


@pytest.mark.parametrize("batch_drafts", [True, False])
def test_a_session_whose_drafts_fail_is_decoded_and_fails_no_other(batch_drafts: bool) -> None:
    w = failing(world(colocated(batch_drafts=batch_drafts), devices=4), "cloud", "s1.0").run()
    assert right(w)
    assert_nothing_left(w)
    origins = {c.session: set() for c in w.log.commands(EmitTokens)}  # type: dict[str, set[str]]
    for c in w.log.commands(EmitTokens):
        origins[c.session].update(c.origins)
    assert origins.pop("s1.0") == {"cloud"}
    assert all("cloud_accepted" in each for each in origins.values())
    batches = [c.work for c in w.log.commands(StartWork) if isinstance(c.work, DraftBatch)]
    assert any(len(batch.works) > 1 for batch in batches) == batch_drafts


def test_a_lone_session_whose_drafts_fail_is_decoded() -> None:
    w = failing(world(colocated(), devices=1), "cloud", "s0.0").run()
    assert right(w)
    assert not misses(w)


# The chip.


class TurnsOnTheChip:
    """An observer: no batch of the target is formed while a draft runs or waits on the chip."""

    def __init__(self) -> None:
        self.w: World | None = None
        self.batches = 0

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        if node != "cloud" or self.w is None:
            return
        self.batches += sum(isinstance(c, StartWork) and isinstance(c.work, ForwardWork) for c in commands)
        running = queue_of(self.w).running
        assert not (server(self.w).worker.running and running and not isinstance(running.work, ForwardWork)), now

    def work_done(self, *_: object) -> None: ...

    def message_sent(self, *_: object) -> None: ...


@pytest.mark.skipif(loader.in_use, reason="a compiled simulator has no further observers")
@pytest.mark.parametrize("window_s", [0.0, 0.013, 0.04])
def test_a_scheduler_that_waits_forms_no_batch_while_drafts_run(window_s: float) -> None:
    turns = TurnsOnTheChip()
    p = colocated(scheduler=StaticBatch(8, window_s), prefill=WholePrefill())
    w = world(p, devices=6, calls_each=0, drive=lambda observers: Simulator([*observers, turns]))
    turns.w = w
    for i in range(6):  # each begins to draft while the ones before wait for their batch
        w.calls.append(GenerationRequest(f"s{i}.0", tuple(range(i, 12)), 24))
        w.simulator.post(0.053 * i, f"device-{i}", RequestArrived(w.calls[-1]))
    w.simulator.run(60)
    assert right(w)
    assert turns.batches > 5


@pytest.mark.skipif(loader.in_use, reason="a compiled node's methods cannot be replaced")
def test_drafting_steps_do_not_ask_every_session_for_every_draft() -> None:
    """A step of n sessions notifies each once."""
    w = world(colocated(), devices=12)
    w.simulator.run(0.15)
    asked: list[str] = []
    for session, requester in server(w).device.active.items():
        handle = requester.handle

        def counted(event: Event, now: float, session: str = session, handle: Any = handle) -> Commands:
            asked.append(session)
            return list(handle(event, now))

        requester.handle = counted  # type: ignore[method-assign]
    while not (queue_of(w).running and isinstance(queue_of(w).running.work, DraftBatch)):
        w.simulator.run(w.simulator.now + 0.001)
    asked.clear()
    size = len(queue_of(w).running.work.works)
    w.simulator.run(w.simulator.now + 0.012)
    assert size > 3
    assert len(asked) <= 2 * 12
