"""The worker step by step: when it forms batches, what it forgets, what it evicts."""

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from serving.messages import (
    HEADER_NBYTES,
    INF,
    CacheMiss,
    DropCache,
    ForwardWork,
    Hop,
    MessageReceived,
    PathStats,
    PeerLost,
    PeerRestored,
    Release,
    Reply,
    Request,
    SamplingParams,
    SendMessage,
    SequenceSlice,
    SetTimer,
    SliceOutcome,
    Span,
    StartWork,
    StopText,
    TensorRef,
    TimerFired,
    Verdict,
    WorkFailed,
    WorkFinished,
)
from serving.nodes.worker import Worker
from serving.policy.slots.kv_cache import NoPrefixCaching, PrefixCaching
from serving.policy.slots.scheduler import ContinuousBatch, StaticBatch
from tests.support.fake_pair import LAYERS
from tests.support.policies import policy

ROUTE = (Hop("cloud", Span(0, LAYERS, embedding=True, lm_head=True)),)


def worker(capacity: float = INF, **override: Any) -> Worker:
    slots = {"scheduler": ContinuousBatch(), "kv_cache": PrefixCaching(block_tokens=1)} | override
    return Worker("cloud", policy("sled", **slots), capacity_tokens=capacity)


def ask(
    session: str = "a", start: int = 0, n: int = 10, check: int = 0, round_: int = 0, budget: int = 1
) -> MessageReceived:
    seq = SequenceSlice(session, start, n, tuple(range(start, start + n)), check, "greedy")
    return MessageReceived(Request(round_, seq, ROUTE, 0, ("cloud",), f"device of {session}", budget))


def decide(w: Worker, now: float = 0.0) -> list[Any]:
    return list(w.handle(TimerFired(w.timer), now))


def finish(w: Worker, *verdicts: Verdict, now: float = 1.0) -> list[Any]:
    results = tuple(SliceOutcome(verdict, None) for verdict in verdicts)
    return list(w.handle(WorkFinished(w.job, results), now))


def raise_error(w: Worker, commands: list[Any]) -> None:
    """Fires the timer that raises an error."""
    (timer,) = {c.timer for c in commands if isinstance(c, SetTimer)} & w.pending_errors.keys()
    w.handle(TimerFired(timer), 0.0)


def batch(commands: list[Any]) -> list[tuple[str, int, int]]:
    works = [c.work for c in commands if isinstance(c, StartWork)]
    return [(r.session, r.start, r.num_tokens) for work in works if isinstance(work, ForwardWork) for r in work.slices]


def said(commands: list[Any], kind: type) -> list[Any]:
    return [c.message for c in commands if isinstance(c, SendMessage) and isinstance(c.message, kind)]


def served(w: Worker, event: MessageReceived, verdict: Verdict | None = None) -> list[Any]:
    w.handle(event, 0.0)
    started = decide(w)
    return started + finish(w, *[verdict or Verdict(0, 7)] * len(batch(started)))


SPLIT = (
    Hop("cloud", Span(0, 1, embedding=True, lm_head=False)),
    Hop("next", Span(1, LAYERS, embedding=False, lm_head=True)),
)
HIDDEN = TensorRef("h", 5)


def whole_request() -> Request:
    """A request none of whose fields, nor those of its slice, has the value that it would have if it was forgotten."""
    seq = SequenceSlice(
        "a", 0, 3, (1, 2, 3), 2, "sampled", SamplingParams(0.7, 0, 1.0, 3), (-1, 0), (), TensorRef("g", 5),
        (TensorRef("p", 5), TensorRef("q", 5)), 1,
    )  # fmt: skip
    stats, stop_text = PathStats(8.0, 0.1, 0.01, 2, 50.0), StopText(("end",))
    return Request(
        2, seq, SPLIT, 0, ("cloud", "next"), "device", 6, 3.0, 2.5, ("tree",), (9,), 4.0, 0.5, 1.0, stats, stop_text
    )


def forgotten_fields(message: Any) -> list[str]:
    """The fields that have their default."""
    return [each.name for each in fields(message) if getattr(message, each.name) == each.default]


def test_a_request_is_handed_on_with_all_its_fields() -> None:
    w, m = worker(), whole_request()
    assert forgotten_fields(m) == forgotten_fields(m.slice) == []
    w.handle(MessageReceived(m), 0.0)
    decide(w)
    (sent,) = said(list(w.handle(WorkFinished(w.job, (SliceOutcome(None, HIDDEN),)), 1.0)), Request)
    seq = replace(m.slice, tokens=(2, 3), kept_tree_nodes=None, hidden_states=HIDDEN, hidden_offset=0)
    assert sent == replace(m, slice=seq, hop_index=1, slack_s=2.0, upstream_s=1.5)


def test_the_next_token_is_asked_for_with_all_fields_of_the_request() -> None:
    """But for what a device measures on its own link."""
    hops = SPLIT[0], replace(SPLIT[1], node="cloud")
    w, m = worker(), replace(whole_request(), hops=hops, hop_index=1, path=("first", "cloud"), stop_text=None)
    w.handle(MessageReceived(m), 0.0)
    decide(w)
    (sent,) = said(finish(w, Verdict(0, 7)), Request)
    one = SequenceSlice("a", 1, 1, (7,), 0, m.slice.rule, m.slice.sampling)
    assert sent == replace(
        m, slice=one, hop_index=0, budget=5, slack_s=1 / 4, expected_tokens=1.0, upstream_s=0.0, sent_s=None,
        path_stats=None,
    )  # fmt: skip


def test_a_batch_is_formed_after_all_arrivals_of_an_instant() -> None:
    w = worker()
    assert list(w.handle(ask("a"), 0.0)) == [SetTimer(0.0, 1)]
    assert list(w.handle(ask("b"), 0.0)) == []
    assert batch(decide(w)) == [("a", 0, 10), ("b", 0, 10)]


def test_requests_that_arrive_during_a_batch_join_the_next() -> None:
    w = worker()
    w.handle(ask("a"), 0.0)
    decide(w)
    assert list(w.handle(ask("b"), 0.5)) == []
    out = finish(w, Verdict(0, 7))
    assert SetTimer(1.0, w.timer) in out
    assert batch(decide(w, 1.0)) == [("b", 0, 10)]


def test_a_waiting_batch_is_reconsidered_on_each_arrival() -> None:
    w = worker(scheduler=StaticBatch(2, 0.5))
    w.handle(ask("a"), 0.0)
    assert decide(w) == [SetTimer(0.5, 2)]
    assert list(w.handle(ask("b"), 0.1)) == [SetTimer(0.1, 3)]
    assert list(w.handle(TimerFired(2), 0.5)) == []  # superseded
    assert batch(decide(w, 0.1)) == [("a", 0, 10), ("b", 0, 10)]


def test_rejected_drafts_leave_the_cache() -> None:
    w = worker()
    out = served(w, ask(n=14, check=4), Verdict(1, 50))
    assert said(out, Reply) == [Reply("a", 0, 10, Verdict(1, 50), ("cloud",), 0, path_latency_s=1.0)]
    assert w.kv_accounting.cached_lens == {("a", 0): 11}
    assert batch(served(w, ask(start=11, n=1, round_=1))) == [("a", 11, 1)]
    assert said(served(w, ask(start=13, n=1, round_=2)), CacheMiss) == [CacheMiss("a", 2, "cloud")]


def test_a_superseded_attempt_is_neither_run_nor_answered() -> None:
    w = worker()
    w.handle(ask("a"), 0.0)
    w.handle(ask("a", n=12, round_=1), 0.0)
    assert list(w.handle(ask("a"), 0.0)) == []  # overtaken on the way
    assert batch(decide(w)) == [("a", 0, 12)]
    w.handle(ask("a", n=13, round_=2), 0.5)
    assert said(finish(w, Verdict(0, 7)), Reply) == []


def test_a_budget_goes_on_writing_until_an_end_token() -> None:
    w = worker()
    out = served(w, ask(budget=3))
    assert [(r.committed_len, r.remaining_budget) for r in said(out, Reply)] == [(10, 2)]
    assert batch(decide(w, 1.0)) == [("a", 10, 1)]
    out = finish(w, Verdict(0, 8))
    assert [(r.committed_len, r.remaining_budget) for r in said(out, Reply)] == [(11, 1)]


def test_without_prefix_caching_parts_are_stored_and_the_request_runs_whole() -> None:
    w = worker(kv_cache=NoPrefixCaching())
    part = SequenceSlice("a", 0, 6, tuple(range(6)))
    assert list(w.handle(MessageReceived(Request(0, part, ROUTE, 0, ("cloud",), "d")), 0.0)) == []
    assert batch(served(w, ask(start=6, n=4))) == [("a", 0, 10)]
    assert said(list(w.handle(ask("b", start=6, n=4), 2.0)), CacheMiss) == [CacheMiss("b", 0, "cloud")]


TREE = (-1, -1, 0, 2)


def ask_tree(
    start: int, tokens: tuple[int, ...], round_: int, kept: tuple[int, ...] | None = None, drafts: int = 4
) -> MessageReceived:
    """A request whose last tokens are the drafts of a tree; `kept` are those of the tree before."""
    seq = SequenceSlice("a", start, len(tokens), tokens, drafts, "greedy", parents=TREE[:drafts], kept_tree_nodes=kept)
    return MessageReceived(Request(round_, seq, ROUTE, 0, ("cloud",), "device of a"))


def sequence(commands: list[Any]) -> SequenceSlice:
    (start,) = [command for command in commands if isinstance(command, StartWork)]
    (found,) = start.work.slices
    assert isinstance(found, SequenceSlice)
    return found


def without_caches() -> Worker:
    """A worker that computes each request anew, and has verified a tree behind the tokens 1, 2, 3."""
    w = worker(kv_cache=NoPrefixCaching())
    w.handle(ask_tree(0, (1, 2, 3, 10, 11, 12, 13), 0), 0.0)
    assert sequence(decide(w)).tokens == (1, 2, 3, 10, 11, 12, 13)
    finish(w, Verdict(2, 50, kept_tree_nodes=(0, 2)))
    return w


def test_without_prefix_caching_a_duplicate_applies_a_tree_once() -> None:
    w = without_caches()
    again = ask_tree(5, (50, 20), 1, kept=(0, 2), drafts=1)
    w.handle(again, 1.0)
    w.handle(again, 1.0)
    for _ in range(2):
        found = sequence(decide(w))
        assert (found.start, found.tokens) == (0, (1, 2, 3, 10, 12, 50, 20))
        finish(w, Verdict(0, 51, kept_tree_nodes=()))


@pytest.mark.parametrize("kept", [(0, 4), (0, 2, 3), (7, 2)])
def test_without_prefix_caching_drafts_that_are_not_stored_are_a_cache_miss(kept: tuple[int, ...]) -> None:
    w = without_caches()
    out = list(w.handle(ask_tree(5, (50, 20, 21, 22, 23), 1, kept=kept), 1.0))
    assert said(out, CacheMiss) == [CacheMiss("a", 1, "cloud")]
    assert not w.queue


def test_a_duplicate_of_a_request_that_keeps_drafts_of_a_tree_does_not_keep_them_twice() -> None:
    w = worker()
    w.handle(ask_tree(0, (1, 2, 3, 10, 11, 12, 13), 0), 0.0)
    decide(w)
    finish(w, Verdict(2, 50, kept_tree_nodes=(0, 2)))
    again = ask_tree(5, (50, 20, 21, 22, 23), 1, kept=(0, 2))
    w.handle(again, 1.0)
    w.handle(again, 1.0)
    first = sequence(decide(w, 1.0))
    finish(w, Verdict(0, 51, kept_tree_nodes=()), now=2.0)
    second = sequence(decide(w, 2.0))
    assert (first.kept_tree_nodes, second.kept_tree_nodes) == ((0, 2), None)
    assert (first.start, first.tokens) == (second.start, second.tokens)


def test_a_draft_that_is_kept_and_was_never_sent_is_a_cache_miss() -> None:
    w = worker()
    w.handle(ask_tree(0, (1, 2, 3, 10, 11, 12, 13), 0), 0.0)
    decide(w)
    finish(w, Verdict(2, 50, kept_tree_nodes=(0, 2)))
    w.handle(ask_tree(5, (50, 20, 21, 22, 23), 1, kept=(0, 4)), 1.0)
    assert said(decide(w, 1.0), CacheMiss) == [CacheMiss("a", 1, "cloud")]


def test_a_release_during_a_batch_takes_effect_after_it() -> None:
    w = worker()
    w.handle(ask("a"), 0.0)
    decide(w)
    assert list(w.handle(MessageReceived(Release("a")), 0.5)) == []
    assert finish(w, Verdict(0, 7)) == [DropCache("a", 0)]
    assert said(list(w.handle(ask("a", round_=5), 2.0)), CacheMiss) == [CacheMiss("a", 1024, "cloud")]
    assert not w.kv_accounting.cached_lens


def test_idle_caches_are_evicted_least_recently_used_first() -> None:
    w = worker(capacity=30)
    for i, session in enumerate("aba"):
        served(w, ask(session, n=10 if i < 2 else 1, start=0 if i < 2 else 10, round_=i))
    out = served(w, ask("c", n=12))
    assert [c for c in out if isinstance(c, DropCache)] == [DropCache("b", 0)]
    assert set(w.kv_accounting.cached_lens) == {("a", 0), ("c", 0)}


def test_the_youngest_waiting_session_is_preempted_for_the_first() -> None:
    w = worker(capacity=30, scheduler=StaticBatch(1, 0.0))
    for session in "ab":
        served(w, ask(session, n=14))
    w.handle(ask("a", start=14, n=8, round_=1), 2.0)
    w.handle(ask("b", start=14, n=1, round_=1), 2.1)
    out = decide(w, 2.2)
    assert batch(out) == [("a", 14, 8)]
    assert [c for c in out if isinstance(c, DropCache)] == [DropCache("b", 0)]
    finish(w, Verdict(0, 7))
    assert said(decide(w, 3.0), CacheMiss) == [CacheMiss("b", 1, "cloud")]


def test_a_new_attempt_reuses_the_memory_of_the_cache_it_replaces() -> None:
    w = worker(capacity=90)
    served(w, ask("a", n=60))
    assert batch(served(w, ask("a", n=62, round_=1))) == [("a", 0, 62)]


def test_a_sequence_larger_than_the_budget_is_an_error() -> None:
    w = worker(capacity=9)
    w.handle(ask("b", n=9), 0.0)
    out = list(w.handle(ask("a", n=10), 0.0))
    assert said(out, CacheMiss) == [CacheMiss("a", 0, "cloud")]
    with pytest.raises(RuntimeError, match="a needs 10 cached tokens, the budget is 9"):
        raise_error(w, out)
    assert batch(decide(w)) == [("b", 0, 9)]


def test_late_messages_do_not_reopen_a_released_session() -> None:
    w = worker()
    served(w, ask("a"))
    w.handle(MessageReceived(Release("a")), 2.0)
    assert said(list(w.handle(ask("a", round_=1), 2.1)), CacheMiss) == [CacheMiss("a", 1024, "cloud")]
    assert not w.queue
    assert not w.session_registry.owners


def test_released_sessions_are_forgotten_in_time() -> None:
    w = worker()
    for i in range(5000):
        served(w, ask(f"s{i}"))
        w.handle(MessageReceived(Release(f"s{i}")), 2.0)
        w.handle(MessageReceived(Release(f"s{i}")), 2.0)  # said twice: as one
    assert len(w.session_registry.newest_attempt) == len(w.session_registry.released) == 4096
    assert not w.kv_accounting.cached_lens


def test_a_message_for_a_forgotten_session_is_a_cache_miss() -> None:
    w = worker()
    for i in range(5000):
        w.handle(MessageReceived(Release(f"s{i}")), 0.0)
    w.handle(ask("s0", start=10, n=5, check=4, round_=7), 1.0)
    assert said(decide(w, 1.0), CacheMiss) == [CacheMiss("s0", 7, "cloud")]
    assert not w.queue


def test_a_session_may_be_forgotten_while_its_batch_runs() -> None:
    w = worker()
    w.handle(ask("a"), 0.0)
    decide(w)
    for session in ("a", *(f"s{i}" for i in range(5000))):
        w.handle(MessageReceived(Release(session)), 0.5)
    assert finish(w, Verdict(0, 7)) == [DropCache("a", 0)]
    assert not w.kv_accounting.cached_lens


def test_a_released_session_reopens_with_a_newer_attempt() -> None:
    w = worker()
    served(w, ask("a"))
    w.handle(MessageReceived(Release("a")), 2.0)
    assert batch(served(w, ask("a", round_=1025))) == [("a", 0, 10)]
    assert not w.session_registry.released
    assert w.session_registry.owners == {"a": ("device of a", 0.0)}


def test_a_restarted_owner_counts_attempts_from_0() -> None:
    w = worker()
    served(w, ask("a", round_=7))
    assert list(w.handle(ask("a", n=12), 1.0)) == []  # taken for a late message
    w.handle(PeerLost("device of a"), 2.0)
    w.handle(PeerRestored("device of a"), 3.0)
    w.handle(ask("a", n=12), 4.0)
    assert batch(decide(w, 4.0)) == [("a", 0, 12)]
    out = finish(w, Verdict(0, 7), now=5.0)
    assert said(out, Reply) == [Reply("a", 0, 12, Verdict(0, 7), ("cloud",), 0, path_latency_s=1.0)]


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_what_is_forwarded_for_a_lost_owner_is_kept_for_a_lease(known: bool, returns: bool) -> None:
    """The owner may end the session before it is back, and its release reaches no node then."""
    w = Worker("next", policy("sled", scheduler=ContinuousBatch(), kv_cache=PrefixCaching()))
    seq = SequenceSlice("a", 0, 3, (), 0, "greedy", hidden_states=HIDDEN)
    request = Request(0, seq, SPLIT, 1, ("cloud", "next"), "device of a")
    if known:
        served(w, MessageReceived(replace(request, slice=replace(seq, session="b"))))
    w.handle(PeerLost("device of a", "link"), 2.0)
    out = list(w.handle(MessageReceived(request), 2.1))
    started = decide(w, 2.1)
    finish(w, *[Verdict(0, 7)] * len(batch(started)), now=2.2)
    assert w.kv_accounting.cached_lens
    if returns:
        w.handle(PeerRestored("device of a", "link"), 3.0)
    due_s = max(c.due_s for c in out if isinstance(c, SetTimer))
    assert due_s == pytest.approx(2.1 + w.session_lease_s)
    dropped = [each for timer in list(w.session_registry.leases) for each in w.handle(TimerFired(timer), due_s)]
    assert DropCache("a", 1) in dropped
    assert not w.session_registry.owners
    assert not w.kv_accounting.cached_lens


def test_an_owner_may_return_after_its_lease_ended() -> None:
    w = worker()
    served(w, ask("a", round_=7))
    w.handle(PeerLost("device of a"), 2.0)
    (timer,) = w.session_registry.leases
    assert w.handle(TimerFired(timer), 40.0) == [DropCache("a", 0)]
    assert not w.session_registry.owners
    assert not w.session_registry.newest_attempt
    assert batch(served(w, ask("a", round_=8))) == [("a", 0, 10)]


def test_the_uplink_of_a_device_that_starts_again_is_measured_anew() -> None:
    """Its clock starts at 0 again: beside the old clock every message would seem to take hours."""
    w = Worker("cloud", policy("hat"))
    assert w.monitor

    def mbps(started_s: float, at: float) -> float:
        for attempt, n in enumerate((1, 5_000)):
            m = ask(n=n, round_=attempt).message
            assert isinstance(m, Request)
            assert w.monitor
            nbytes = HEADER_NBYTES + m.slice.nbytes
            sent_s = at + attempt
            w.handle(MessageReceived(replace(m, sent_s=sent_s - started_s)), sent_s + nbytes / 1e6)
        return w.monitor.uplinks["device of a"].mbps

    assert mbps(0.0, 10.0) == pytest.approx(8.0, rel=0.01)
    w.handle(PeerLost("device of a", "link"), 20.0)
    assert "device of a" in w.monitor.uplinks
    w.handle(PeerLost("device of a"), 20.0)
    assert mbps(8_000.0, 8_010.0) == pytest.approx(8.0, rel=0.01)


def test_sessions_of_a_failed_batch_run_alone() -> None:
    w = worker()
    for session in "abc":
        w.handle(ask(session), 0.0)
    decide(w)
    assert len(said(list(w.handle(WorkFailed(w.job), 0.5)), CacheMiss)) == 3
    for session in "abcd":
        w.handle(ask(session, round_=1), 1.0)
    assert batch(decide(w, 1.0)) == [("a", 0, 10)]
    w.handle(WorkFailed(w.job), 1.5)
    assert batch(decide(w, 1.5)) == [("b", 0, 10)]
    finish(w, Verdict(0, 7))
    w.handle(ask("a", round_=2), 2.0)
    assert batch(decide(w, 2.0)) == [("c", 0, 10)]
    finish(w, Verdict(0, 7))
    assert batch(decide(w, 2.0)) == [("a", 0, 10)]
    finish(w, Verdict(0, 7))
    assert batch(decide(w, 2.0)) == [("d", 0, 10)]
    assert not w.quarantined


def test_a_token_within_the_budget_has_the_slack_of_one_token() -> None:
    """The device promised 4 tokens/s; what loops begins with a quarter of a second, whatever the first one had."""
    w = worker()
    seq = SequenceSlice("a", 0, 10, tuple(range(10)), 0, "greedy")
    w.handle(MessageReceived(Request(0, seq, ROUTE, 0, ("cloud",), "device", 3, 9.0, 1.0, slo_tokens_per_s=4.0)), 0.0)
    decide(w)
    finish(w, Verdict(0, 7), now=2.0)
    ((item,),) = w.queue.values()
    assert item.deadline_s == 2.25
    assert item.request.expected_tokens == 1.0


@dataclass(frozen=True)
class EmptyBatches:
    """A scheduler that picks nothing, which the protocol forbids."""

    def pick(self, *_: Any) -> list[Any]:
        return []


def test_an_empty_batch_is_an_error_that_names_the_scheduler() -> None:
    w = worker(scheduler=EmptyBatches())
    w.handle(ask(), 0.0)
    with pytest.raises(ValueError, match=r"cloud: EmptyBatches\(\) picked an empty batch while 1 requests wait"):
        raise_error(w, decide(w))


@dataclass(frozen=True)
class WaitsUntil:
    """A scheduler that only waits."""

    until_s: Any

    def pick(self, *_: Any) -> Any:
        return self.until_s


@pytest.mark.parametrize("until_s", [0.0, -1.0, float("nan"), None])
def test_a_scheduler_that_waits_until_a_time_that_is_no_later_is_an_error(until_s: Any) -> None:
    """The worker would ask it again at the same moment for ever."""
    w = worker(scheduler=WaitsUntil(until_s))
    w.handle(ask(), 0.0)
    with pytest.raises(ValueError, match=r"cloud: WaitsUntil\(until_s=.*\) returned .* at 0\.000000 s"):
        raise_error(w, decide(w))


@dataclass(frozen=True)
class Refuses:
    """A scheduler with an error that one session causes."""

    session: str

    def pick(self, queue: Any, *_: Any) -> Any:
        if any(item.slice.session == self.session for item in queue):
            raise ZeroDivisionError(self.session)
        return [(item, item.slice.num_tokens) for item in queue]


def test_an_error_of_the_scheduler_lets_its_sessions_start_again_each_alone() -> None:
    w = worker(scheduler=Refuses("b"))
    for session in "abc":
        w.handle(ask(session), 0.0)
    out = decide(w)
    assert [miss.session for miss in said(out, CacheMiss)] == ["a", "b", "c"]
    with pytest.raises(ZeroDivisionError, match="b"):
        raise_error(w, out)
    for session in "bac":
        w.handle(ask(session, round_=1), 0.0)
    out = decide(w)
    assert said(out, CacheMiss) == [CacheMiss("b", 1, "cloud")]
    assert batch(decide(w)) == [("a", 0, 10)]
    assert batch(finish(w, Verdict(0, 7)) + decide(w)) == [("c", 0, 10)]


@dataclass(frozen=True)
class AddsOne:
    """A scheduler that also picks a request that it was not offered, which the protocol forbids."""

    other: Any

    def pick(self, queue: Any, *_: Any) -> Any:
        return [(item, item.slice.num_tokens) for item in (*queue, self.other)]


def test_caches_that_were_evicted_for_a_batch_that_cannot_start_are_dropped() -> None:
    w, other = worker(capacity=45), worker()
    other.handle(ask("b"), 0.0)
    served(w, ask("idle", n=20))
    w.pick_batch = AddsOne(other.queue["b"][0]).pick
    w.handle(ask("a", n=20), 0.0)
    out = decide(w)
    assert DropCache("idle", 0) in out
    assert said(out, CacheMiss) == [CacheMiss("a", 0, "cloud")]
    with pytest.raises(KeyError, match="b"):
        raise_error(w, out)
    w.pick_batch = ContinuousBatch().pick
    w.handle(ask("a", n=20, round_=1), 1.0)
    assert batch(decide(w)) == [("a", 0, 20)]


def test_a_devices_own_worker_raises_an_error_at_once() -> None:
    """Its requester would try again within the same event."""
    w = worker(4)
    own = ask(n=10).message
    assert isinstance(own, Request)
    with pytest.raises(RuntimeError, match="needs 10 cached tokens, the budget is 4"):
        w.handle(MessageReceived(replace(own, reply_to=w.name)), 0.0)


def test_a_session_that_fails_again_and_again_raises_one_error() -> None:
    w = worker(4)
    timers = [
        c.timer for round_ in range(5) for c in w.handle(ask(n=10, round_=round_), 0.0) if isinstance(c, SetTimer)
    ]
    assert len(timers) == len(w.pending_errors) == 1


def test_an_error_in_one_answer_leaves_the_others_of_its_batch() -> None:
    def text(tokens: Any) -> str:
        raise ZeroDivisionError("no text")

    w = worker()
    w.token_text = text
    stops = ask("a", budget=3).message
    assert isinstance(stops, Request)
    w.handle(MessageReceived(replace(stops, stop_text=StopText(("end",)))), 0.0)
    for session in "bc":
        w.handle(ask(session), 0.0)
    decide(w)
    w.handle(ask("d"), 0.5)
    out = finish(w, *[Verdict(0, 7)] * 3)
    assert [reply.session for reply in said(out, Reply)] == ["b", "c"]
    assert said(out, CacheMiss) == [CacheMiss("a", 0, "cloud")]
    with pytest.raises(ZeroDivisionError, match="no text"):
        raise_error(w, out)
    assert batch(decide(w)) == [("d", 0, 10)]
