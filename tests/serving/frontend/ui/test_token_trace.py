"""The token trace of a run, which leaves no state."""

from typing import Any

import pytest

from serving.frontend.ui.token_trace import RunObserver
from serving.messages import (
    REPLY_NBYTES,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    EmitTokens,
    GenerationRequest,
    MessageReceived,
    PeerLost,
    Reply,
    RequestArrived,
    TreeRule,
    Verdict,
)
from tests.support.policies import policy as fake_policy
from tests.support.simulated_nodes import world


def test_a_drafted_token_is_the_answers_or_the_devices_last_draft() -> None:
    observer = RunObserver(["device-0"])
    observer.start("s", "device-0")
    observer.event_handled("device-0", RequestArrived(GenerationRequest("s", (1, 2), 8)), 0.0, ())
    plain = DraftWork("s", 0, (1, 2), DraftStopRule(2))
    observer.work_done(
        "device-0", plain, DraftOutcome((5, 6), {"route": (0.1, 0.2)}, ((5, 7, 8), (6, 7, 8)), False, 4), 0, 1
    )
    ahead = DraftWork("s", 3, (), DraftStopRule(1), branches=((5,), (5, 9)))
    observer.work_done(
        "device-0", ahead, DraftOutcome((3, 4), {"route": (0.3, 0.4)}, ((3, 1, 0), (4, 1, 0)), False, 4), 1, 2
    )
    drafts = {at: observer.drafted_token("s", at, token) for at, token in ((2, 5), (3, 99), (4, 3), (5, 4), (6, 1))}
    assert [draft and (draft.token, draft.scores["route"]) for draft in drafts.values()] == [
        (5, 0.1), (6, 0.2), (3, 0.3), (4, 0.4), None
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("work", "first"),
    [
        (DraftWork("s", 3, (8, 9), DraftStopRule(4, tree=TreeRule(2, 2))), 5),
        (DraftWork("s", 3, (), DraftStopRule(4, tree=TreeRule(2, 2)), branches=((7, 8, 9),)), 6),
    ],
)
def test_the_nodes_of_a_tree_stand_at_their_depth(work: DraftWork, first: int) -> None:
    """Also where the tree is drafted ahead, behind its one branch."""
    observer = RunObserver(["d"])
    observer.start("s", "d")
    tops = ((20,), (21,), (22,), (23,))
    observer.work_done("d", work, DraftOutcome((20, 21, 22, 23), {}, tops, False, 5, parents=(-1, -1, 0, 1)), 0.0, 1.0)
    found = [observer.drafted_token("s", position, token) for position, token in
             ((first, 20), (first, 21), (first + 1, 22), (first + 1, 23))]  # fmt: skip
    assert [one.token if one else None for one in found] == [20, 21, 22, 23]
    assert observer.drafted_token("s", first + 2, 24) is None


def test_late_events_of_a_finished_run_leave_no_state() -> None:
    observer = RunObserver(["device-0"])
    observer.event_handled("device-0", RequestArrived(GenerationRequest("left", (1,), 8)), 0.0, ())
    assert not observer._recorder.records
    observer.start("s", "device-0")
    observer.event_handled("device-0", RequestArrived(GenerationRequest("s", (1,), 8)), 0.0, ())
    observer.forget("s")
    observer.work_done(
        "device-0", DraftWork("s", 0, (1,), DraftStopRule(1)), DraftOutcome((5,), {}, ((5, 6, 7),), False, 1), 0, 1
    )
    observer.event_handled("device-0", PeerLost("cloud-0"), 1.0, (EmitTokens("s", (), (), "cancelled"),))
    assert not observer._recorder.records


class LeavingObserver(RunObserver):
    """An observer whose runs all end after `after` events."""

    def __init__(self, devices: list[str], after: int) -> None:
        super().__init__(devices)
        self.after = after

    def event_handled(self, *what: Any) -> None:
        super().event_handled(*what)
        self.after -= 1
        if not self.after:
            self.leave()

    def leave(self) -> None:
        for session in list(self._device_of):
            self.forget(session)


def test_a_run_leaves_no_state_whenever_its_client_disconnects() -> None:
    """Otherwise a page that stays open would fill the memory."""
    for after in range(1, 60, 3):
        w = world(fake_policy("sled"), devices=2, limit=12)
        observer = LeavingObserver(["device-0", "device-1"], after)
        for call in w.calls:
            observer.start(call.session, "device-0")
        w.simulator.set_observers((observer,))
        w.run()
        observer.leave()
        assert observer._recorder.records == observer._device_of == observer._drafted_tokens == {}
        assert not [state for state in observer._recorder._workers.values() if state.waiting_since_s or state.arrived]
    assert observer._recorder._workers


def test_messages_of_a_remote_cloud_are_counted_on_arrival() -> None:
    observer = RunObserver(["device-0"], frozenset(["device-0"]))
    observer.start("s", "device-0")
    observer.event_handled("device-0", RequestArrived(GenerationRequest("s", (1,), 8)), 0.0, ())
    observer.event_handled("device-0", MessageReceived(Reply("s", 0, 1, Verdict(0, 7), ("cloud-0",), 0)), 1.0, ())
    assert observer.record("s").downlink_nbytes == REPLY_NBYTES
