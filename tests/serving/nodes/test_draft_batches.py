"""Drafts of several sessions in one forward on a device: the same text, fewer jobs, to each session its outcome."""

from typing import Any

import pytest

from serving.messages import (
    DraftBatch,
    DraftDecision,
    DraftWork,
    SessionCancelled,
    StartWork,
    WorkFinished,
)
from serving.metrics.recorder import Recorder
from serving.policy.policy import SlotConflictError
from serving.policy.slots.early_exit import ProgressiveExit
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.placement import UShapedPlacement
from tests.support.fake_pair import own_text
from tests.support.policies import policy
from tests.support.simulated_nodes import World, failing, world

HOW: dict[str, Any] = {"devices": 1, "at_once": 3, "calls_each": 6, "prompt": 20, "limit": 30}


def hat(batch_drafts: bool = True, **override: Any) -> Any:
    return policy("hat", placement=UShapedPlacement(2, 1, "last"), batch_drafts=batch_drafts, **override)


def sled(batch_drafts: bool = True) -> Any:
    return policy("sled", kv_cache=PrefixCaching(), batch_drafts=batch_drafts)


def batches(w: World) -> list[DraftBatch]:
    return [start.work for start in w.log.commands(StartWork) if isinstance(start.work, DraftBatch)]


def assert_texts_are_the_targets(w: World) -> None:
    assert w.endings() == {call.session: "complete" for call in w.calls}
    for call in w.calls:
        assert w.text(call.session) == own_text(call.prompt, call.max_new_tokens, call.stop_tokens)


@pytest.mark.parametrize("make", [hat, sled])
@pytest.mark.parametrize("seed", range(4))
def test_batched_drafts_write_the_targets_text(make: Any, seed: int) -> None:
    w = world(make(), seed=seed, **HOW).run()
    assert_texts_are_the_targets(w)
    assert len(batches(w)) > 10
    assert w.replays()
    assert not any(pair.caches for pair in w.chips.values())


@pytest.mark.parametrize("make", [hat, sled])
def test_sessions_that_wait_share_a_forward(make: Any) -> None:
    together, one_by_one = world(make(), **HOW).run(), world(make(False), **HOW).run()
    assert_texts_are_the_targets(one_by_one)
    assert not batches(one_by_one)
    assert {len(batch.works) for batch in batches(together)} >= {2, 3}
    for batch in batches(together):
        assert len({work.session for work in batch.works}) == len(batch.works)
    jobs = {name: len(w.log.commands(StartWork)) for name, w in (("together", together), ("one by one", one_by_one))}
    assert jobs["together"] < jobs["one by one"]
    assert together.simulator.now < one_by_one.simulator.now


def test_a_batch_takes_lookahead_along() -> None:
    w = world(hat(), **HOW).run()
    assert any(
        any(work.branches for work in batch.works) and any(not work.branches for work in batch.works)
        for batch in batches(w)
    )


@pytest.mark.parametrize("name", ["hat", "sled"])
def test_a_lone_session_decides_as_without_batches(name: str) -> None:
    make = {"hat": hat, "sled": sled}[name]
    logs = [world(make(on), devices=2, calls_each=2, prompt=20, limit=30).run().log.entries for on in (True, False)]
    assert logs[0] == logs[1]


def test_each_session_gets_its_own_outcome() -> None:
    """The chip's `WorkFinished` of a batch is what each requester sees of its own draft."""
    w = world(sled(), **HOW).run()
    for chunk in w.log.commands(DraftDecision):
        assert len(chunk.tokens) <= 4
    finished = {
        event.job: event.outcome
        for node, event, _, _ in w.log.entries
        if node == "device-0" and isinstance(event, WorkFinished)
    }
    for start in w.log.commands(StartWork):
        if isinstance(start.work, DraftBatch):
            outcomes = finished[start.job].outcomes  # type: ignore[union-attr]
            for work, outcome in zip(start.work.works, outcomes, strict=True):
                assert len(outcome.tokens) == (len(work.branches) or work.stop_rule.max_tokens)


def test_the_measured_drafting_step_is_the_batchs_time() -> None:
    """Every draft of a batch took the batch's time, not none because the one before it has just finished."""
    w = world(hat(), **HOW).run()
    steps = [device.monitor.draft_step_s.value for device in w.devices.values()]
    assert all(step_s is not None and step_s >= 0.0099 for step_s in steps)


@pytest.mark.parametrize("at", [0.01 * i for i in range(12)])
@pytest.mark.parametrize("make", [hat, sled])
def test_a_cancelled_session_leaves_the_others_of_its_batch_alone(make: Any, at: float) -> None:
    w = world(make(), devices=1, at_once=3, calls_each=3, prompt=20, limit=30)
    w.simulator.run(at)
    w.simulator.post(at, "device-0", SessionCancelled("s0.1"))
    w.simulator.run()
    assert w.endings() == {"s0.0": "complete", "s0.1": "cancelled", "s0.2": "complete"}
    for call in w.calls:
        if call.session != "s0.1":
            assert w.text(call.session) == own_text(call.prompt, call.max_new_tokens, call.stop_tokens)


@pytest.mark.parametrize("make", [hat, sled])
def test_a_failed_batch_is_drafted_one_by_one_and_fails_the_bad_session_alone(make: Any) -> None:
    w = failing(world(make(), **HOW), "device-0", "s0.1").run()
    endings = w.endings()
    assert endings.pop("s0.1") == "failed"
    assert set(endings.values()) == {"complete"}
    for call in w.calls:
        assert call.session == "s0.1" or w.text(call.session) == own_text(call.prompt, call.max_new_tokens)
    assert batches(w)
    assert not any(pair.caches for pair in w.chips.values())


def test_every_session_of_a_failed_batch_may_fail_alone() -> None:
    w = failing(world(sled(), **HOW), "device-0", *(f"s0.{i}" for i in range(6))).run()
    assert set(w.endings().values()) == {"failed"}
    queue = w.devices["device-0"].compute_queue
    assert queue is not None
    assert (queue.running, queue.quarantined) == (None, set())


def test_a_batchs_time_is_shared_by_tokens() -> None:
    w = world(sled(), **HOW)
    recorder = Recorder(list(w.devices))
    busy: list[float] = []

    class Busy:
        def work_done(self, node: str, work: Any, outcome: Any, begin_s: float, end_s: float) -> None:
            if node in w.devices and isinstance(work, DraftWork | DraftBatch):
                busy.append(end_s - begin_s)

        def event_handled(self, *_: object) -> None: ...

        def message_sent(self, *_: object) -> None: ...

    w.simulator.set_observers((w.log, recorder, Busy()))
    w.run()
    assert sum(record.device_busy_s for record in recorder.records.values()) == pytest.approx(sum(busy))
    drafted = sum(len(chunk.tokens) for chunk in w.chunks())
    assert sum(record.drafted for record in recorder.records.values()) >= drafted


def test_batches_are_refused_where_a_pass_ends_early_or_importance_is_read() -> None:
    with pytest.raises(SlotConflictError, match="batched drafts run all layers"):
        policy("sled", early_exit=ProgressiveExit(), batch_drafts=True)
    with pytest.raises(SlotConflictError, match="importance"):
        policy("synera", early_exit=policy("sled").early_exit, batch_drafts=True)
