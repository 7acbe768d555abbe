"""A split target whose first and last hops run on the device: the target's text, and no token on any link."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import pytest

from serving.messages import (
    CacheMiss,
    DraftOutcome,
    DraftWork,
    DropCache,
    ForwardWork,
    GenerationRequest,
    LoadReport,
    MessageReceived,
    PeerLost,
    PeerRestored,
    Release,
    Reply,
    Request,
    RequestArrived,
    SendMessage,
    SequenceSlice,
    SessionCancelled,
    StartWork,
    TensorRef,
    TimerFired,
    WorkFinished,
)
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.dispatch import HypSched
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.placement import UShapedPlacement
from serving.policy.slots.prefill import ChunkedPrefill, OverlappedPrefill, WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch
from tests.support.fake_pair import FakePair, own_text
from tests.support.policies import policy
from tests.support.simulated_nodes import World, world

NAMES = ("hat", "u_shape", "u_medusa")
MOMENTS = [i * 0.046 for i in range(15)]
ENDS = tuple(range(1, 997, 60))


def split_policy(name: str, stages: int = 1, download: str = "last", **override: Any) -> Policy:
    return policy(name, placement=UShapedPlacement(2, stages, download), **override)  # type: ignore[arg-type]


def requests(w: World, to: str | None = None) -> list[Request]:
    found = [send for send in w.log.commands(SendMessage) if isinstance(send.message, Request)]
    return [send.message for send in found if to in (None, send.to)]


def assert_texts_are_the_targets(w: World) -> None:
    assert w.endings() == {call.session: "complete" for call in w.calls}
    for call in w.calls:
        assert w.text(call.session) == own_text(call.prompt, call.max_new_tokens, call.stop_tokens)


def assert_no_state_left(w: World) -> None:
    chips = [device.local_worker for device in w.devices.values() if device.local_worker]
    for worker in (*w.workers.values(), *chips):
        assert not worker.retained_requests
        assert not worker.withheld
        assert not worker.forwarded
        assert not worker.queue
        assert not worker.kv_accounting.cached_lens
    assert not any(pair.caches for pair in w.chips.values())


def test_the_hop_on_a_device_hears_how_loaded_the_next_nodes_are() -> None:
    made = split_policy("u_shape", dispatch=HypSched())
    device = Device("device-0", made, made.placement.hops(4, 4), {"cloud": ("cloud-0", "cloud-1")}, 0)
    for node, queued_s in (("cloud-0", 99.0), ("cloud-1", 0.0)):
        assert not device.handle(MessageReceived(LoadReport(node, queued_s, 1e-3, 1e-3, 1e6)), 0.0)
    assert device.local_worker
    chosen = device.local_worker.node_selector.choose("cloud", SequenceSlice("s", 0, 4, (1, 2, 3, 4)), 1)
    assert chosen == device.node_selector.choose("cloud", SequenceSlice("s", 0, 4, (1, 2, 3, 4)), 1) == "cloud-1"


def leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """(field, value) of all that is not empty in a message."""
    for field in fields(value):
        inner = getattr(value, field.name)
        if is_dataclass(inner):
            yield from leaves(inner)
        elif inner not in ((), None):
            yield field.name, inner
        for each in inner if isinstance(inner, tuple) else ():
            if is_dataclass(each):
                yield from leaves(each)


@pytest.mark.parametrize("download", ["last", "all"])
@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(
    "prefill",
    [
        OverlappedPrefill(initial_chunk_tokens=8),
        ChunkedPrefill(7, "first"),
        pytest.param(ChunkedPrefill(7), marks=pytest.mark.slow),
        pytest.param(WholePrefill("first"), marks=pytest.mark.slow),
        WholePrefill(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", NAMES)
def test_local_hops_write_the_targets_text_and_send_no_token(
    name: str, prefill: Any, stages: int, download: str
) -> None:
    """Sarathi's small chunk cuts what arrives; several sessions at once interleave on one chip."""
    p = split_policy(name, stages, download, prefill=prefill, scheduler=ContinuousBatch(chunk_tokens=5))
    w = world(p, at_once=3, calls_each=3, prompt=33, limit=30, ends=ENDS).run()
    assert_texts_are_the_targets(w)
    said = w.log.commands(SendMessage)
    assert len(said) > 30
    assert {type(send.message) for send in said} <= {Request, Release}
    for send in said:
        secret = {"tokens", "ends", "odds", "verdict", "proposal", "token"}
        assert secret.isdisjoint(name for name, _ in leaves(send.message) if _is_tokens(send.message, name))
    assert w.replays()
    assert_no_state_left(w)


def _is_tokens(message: Any, name: str) -> bool:
    """`tokens` of a Condition is how many rows a batch has."""
    return name != "tokens" or bool(message.slice.tokens)


def test_the_check_detects_a_policy_that_sends_tokens() -> None:
    w = world(policy("sled", kv_cache=PrefixCaching()), devices=1).run()
    assert any(name == "tokens" for send in w.log.commands(SendMessage) for name, _ in leaves(send.message))
    assert any(isinstance(send.message, Reply) for send in w.log.commands(SendMessage))


@pytest.mark.parametrize("stages", [1, 2])
def test_a_prompts_last_or_all_hidden_states_are_downloaded(stages: int) -> None:
    ways = {}
    for download in ("last", "all"):
        p = split_policy("u_shape", stages, download, prefill=ChunkedPrefill(8, "first"))
        w = world(p, devices=1, prompt=33, limit=1).run()
        ways[download] = [
            (m.slice.start, m.slice.hidden_states.nbytes // 8192)
            for m in requests(w, "device-0")
            if m.slice.hidden_states
        ]
        assert sum(m.slice.num_tokens for m in requests(w, "cloud")) == 33
    assert ways == {"last": [(32, 1)], "all": [(0, 8), (8, 8), (16, 8), (24, 8), (32, 1)]}


def prompt_downloads(w: World) -> list[tuple[float, int, int]]:
    """(sent at, first position, hidden states) of each part of a prompt that the device is sent."""
    return [
        (at_s, send.message.slice.start, send.message.slice.hidden_states.nbytes // 8192)
        for _, _, at_s, said in w.log.entries
        for send in said
        if isinstance(send, SendMessage) and send.to == "device-0" and isinstance(send.message, Request)
        if send.message.slice.hidden_states
    ]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("prefill", [WholePrefill("first"), ChunkedPrefill(16, "first")], ids=repr)
def test_a_prompts_parts_are_downloaded_one_by_one_or_together(stages: int, prefill: Any) -> None:
    sent = {}
    for stream in (True, False):
        placement = UShapedPlacement(2, stages, "all", stream_download=stream)
        p = policy("u_shape", placement=placement, prefill=prefill, scheduler=ContinuousBatch(chunk_tokens=8))
        w = world(p, devices=1, prompt=33, limit=1).run()
        assert_texts_are_the_targets(w)
        assert_no_state_left(w)
        sent[stream] = prompt_downloads(w)
    parts = [(0, 8), (8, 8), (16, 8), (24, 8), (32, 1)]
    assert [part[1:] for part in sent[True]] == [part[1:] for part in sent[False]] == parts
    assert len({at_s for at_s, *_ in sent[True]}) == 5
    assert {at_s for at_s, *_ in sent[False]} == {sent[True][-1][0]}


def test_withheld_parts_of_an_attempt_that_was_voided_are_not_sent() -> None:
    p = policy("u_shape", placement=UShapedPlacement(2, 1, "all", stream_download=False))
    worker = Worker("cloud-0", p, {"cloud": ("cloud-0",)})
    hops = p.placement.hops(4, 4)
    sent: list[Any] = []
    for attempt in (1, 2):
        for start in (0, 8):
            rule: Any = "greedy" if (attempt, start) == (2, 8) else ""
            seq = SequenceSlice("s", start, 8, (), 0, rule, hidden_states=TensorRef(f"{attempt}/{start}", 8))
            m = Request(attempt, seq, hops, 2, ("device-0", "cloud-0", "device-0"), "device-0")
            sent = worker._send_with_withheld("device-0", m)
            assert bool(sent) == bool(rule)
    assert [send.message.slice.hidden_states.id for send in sent] == ["2/0", "2/8"]


def test_requests_have_the_bytes_of_a_header_and_the_hidden_states() -> None:
    w = world(split_policy("u_shape"), devices=1, prompt=12, limit=2).run()
    assert [send.nbytes for send in w.log.commands(SendMessage) if isinstance(send.message, Request)] == [
        16 + 12 * 8192, 16 + 8192, 16 + 8192, 16 + 8192,
    ]  # fmt: skip


def test_the_first_hop_runs_before_cache_filling_and_lookahead() -> None:
    w = world(split_policy("hat", prefill=WholePrefill("first")), devices=1, prompt=12, limit=40).run()
    works = [
        start.work
        for node, _, _, said in w.log.entries
        for start in said
        if isinstance(start, StartWork)
        if "dev" in node
    ]
    assert isinstance(works[0], ForwardWork)
    assert isinstance(works[1], DraftWork)
    assert works[1].stop_rule.max_tokens == 0
    hops = [i for i, work in enumerate(works) if isinstance(work, ForwardWork) and work.span.embedding]
    ahead = [i for i, work in enumerate(works) if isinstance(work, DraftWork) and work.branches]
    assert len(ahead) > 3
    drafted = [
        i
        for i, work in enumerate(works)
        if isinstance(work, DraftWork) and work.stop_rule.max_tokens > 0 and not work.branches
    ]
    for i in ahead:  # since the last draft the question's first hop was started
        assert max(hop for hop in hops if hop < i) > max([d for d in drafted if d < i], default=-1)


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_verdict_is_handled_before_further_lookahead(seed: int, at_once: int) -> None:
    """The chip is free when the head has run: what the session makes of the answer comes first."""
    w = world(
        split_policy("hat", prefill=OverlappedPrefill(initial_chunk_tokens=8)),
        at_once=at_once,
        calls_each=3,
        prompt=60,
        limit=40,
        seed=seed,
    )
    w.run()
    assert_texts_are_the_targets(w)
    for node, event, _, said in w.log.entries:
        if "device" in node and isinstance(event, WorkFinished) and not isinstance(event.outcome, DraftOutcome):
            drafting = [c.work.session for c in said if isinstance(c, StartWork) and isinstance(c.work, DraftWork)]
            assert len(drafting) == len(set(drafting)), "drafted ahead of a verdict that was there"


def test_concurrent_sessions_share_the_chip() -> None:
    w = world(split_policy("hat"), devices=1, at_once=3, calls_each=3, prompt=20, limit=30).run()
    assert_texts_are_the_targets(w)
    cloud = [
        rows.session
        for start in w.log.commands(StartWork)
        if isinstance(start.work, ForwardWork)
        for rows in start.work.slices
    ]
    assert sum(a != b for a, b in pairwise(cloud)) > 20  # in turns
    assert any(isinstance(s.work, ForwardWork) and len(s.work.slices) > 1 for s in w.log.commands(StartWork))


@pytest.mark.parametrize("at", MOMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_short_loss_changes_no_token(name: str, at: float) -> None:
    w = world(split_policy(name, 2), devices=1, at_once=2, calls_each=2, limit=20)
    w.simulator.run(at)
    for cloud in w.workers:
        w.simulator.post(at, "device-0", PeerLost(cloud))
        w.simulator.post(at + 0.05, "device-0", PeerRestored(cloud))
    w.simulator.run()
    assert_texts_are_the_targets(w)
    assert_no_state_left(w)


@pytest.mark.parametrize("ends", [("link", "node"), ("node", "link")])
@pytest.mark.parametrize("name", NAMES)
def test_a_devices_hop_goes_on_when_both_causes_of_a_loss_have_ended(name: str, ends: tuple[Any, Any]) -> None:
    """An outage of the link while the node is down, whichever ends first."""
    w = world(split_policy(name), devices=1, limit=20)
    w.simulator.run(0.1)
    w.simulator.post(0.1, "device-0", PeerLost("cloud", "node"))
    w.simulator.post(0.11, "device-0", PeerLost("cloud", "link"))
    for seconds, cause in zip((0.2, 0.3), ends, strict=True):
        w.simulator.post(seconds, "device-0", PeerRestored("cloud", cause))
    w.simulator.run()
    assert_texts_are_the_targets(w)
    assert_no_state_left(w)


@pytest.mark.parametrize("name", NAMES)
def test_sessions_evicted_by_a_full_cloud_are_retried(name: str) -> None:
    w = world(split_policy(name, 2), devices=3, at_once=2, calls_each=2, prompt=20, limit=20, capacity_tokens=70).run()
    assert any(isinstance(send.message, CacheMiss) for send in w.log.commands(SendMessage))
    assert_texts_are_the_targets(w)
    assert_no_state_left(w)


@pytest.mark.parametrize("at", MOMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_cancelled_session_leaves_nothing_behind(name: str, at: float) -> None:
    """Also before the first reply, when the device does not know yet which nodes hold its caches."""
    w = world(
        split_policy(name, 2, prefill=ChunkedPrefill(5, "first")),
        devices=1,
        at_once=2,
        calls_each=2,
        prompt=33,
        limit=40,
    )
    w.simulator.run(at)
    w.simulator.post(at, "device-0", SessionCancelled("s0.0"))
    w.simulator.run()
    assert w.endings() == {"s0.0": "cancelled", "s0.1": "complete"}
    assert DropCache("s0.0", None) in w.log.commands(DropCache)
    assert_no_state_left(w)


def test_messages_of_a_device_to_itself_are_never_commands() -> None:
    p = split_policy("u_shape")
    device = Device("d", p, p.placement.hops(8, 8), {"cloud": ("cloud",)}, 0, hidden_nbytes=8192)
    pair = FakePair()
    (wake,) = device.handle(RequestArrived(GenerationRequest("s", (1, 2, 3), 2)), 0.0)
    (start,) = device.handle(TimerFired(wake.timer), 0.0)  # type: ignore[union-attr]
    (sent,) = device.handle(WorkFinished(start.job, pair.execute(start.work)[0]), 0.1)  # type: ignore[union-attr]
    assert sent.to == "cloud"  # type: ignore[union-attr]
    assert sent.message.slice.tokens == sent.message.stop_tokens == ()  # type: ignore[union-attr]
    assert device.local_worker is not None
    assert [held.slice.tokens for held in device.local_worker.retained_requests.values()] == [()]


def test_a_request_without_its_retained_drafts_is_a_cache_miss() -> None:
    """As after a restart of the device: its tokens are gone, and the session asks anew."""
    w = world(split_policy("hat"), devices=1, limit=20)
    w.simulator.run(0.1)
    device = w.devices["device-0"]
    assert device.local_worker is not None
    assert device.local_worker.retained_requests
    device.local_worker.retained_requests.clear()
    w.simulator.run()
    assert_texts_are_the_targets(w)
    assert max(m.attempt for m in requests(w)) > 0


def test_a_release_is_forwarded_to_nodes_that_the_device_does_not_know() -> None:
    w = world(split_policy("u_shape", 4), devices=1, prompt=33, limit=5)
    w.simulator.run(0.2)  # the prompt is on its way through the cloud
    w.simulator.post(0.2, "device-0", SessionCancelled("s0.0"))
    w.simulator.run()
    reached = {
        node
        for node, event, _, _ in w.log.entries
        if isinstance(event, MessageReceived) and isinstance(event.message, Request)
    }
    released = {
        node
        for node, event, _, _ in w.log.entries
        if isinstance(event, MessageReceived) and event.message == Release("s0.0")
    }
    assert reached - {"device-0"} == released
    assert len(reached) > 1
