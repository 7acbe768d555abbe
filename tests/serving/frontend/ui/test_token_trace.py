"""What is seen of a run, and that nothing of it stays."""

from typing import Any

from fake_world import policy as fake_policy
from fake_world import world

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
    Verdict,
)


def test_a_look_is_of_the_token_that_stands_or_of_the_devices_own() -> None:
    watch = RunObserver(["device-0"])
    watch.start("s", "device-0")
    watch.event_handled("device-0", RequestArrived(GenerationRequest("s", (1, 2), 8)), 0.0, ())
    plain = DraftWork("s", 0, (1, 2), DraftStopRule(2))
    watch.work_done(
        "device-0", plain, DraftOutcome((5, 6), {"route": (0.1, 0.2)}, ((5, 7, 8), (6, 7, 8)), False, 4), 0, 1
    )
    ahead = DraftWork("s", 3, (), DraftStopRule(1), branches=((5,), (5, 9)))
    watch.work_done(
        "device-0", ahead, DraftOutcome((3, 4), {"route": (0.3, 0.4)}, ((3, 1, 0), (4, 1, 0)), False, 4), 1, 2
    )
    looks = {at: watch.drafted_token("s", at, token) for at, token in ((2, 5), (3, 99), (4, 3), (5, 4), (6, 1))}
    assert [look and (look.token, look.scores["route"]) for look in looks.values()] == [
        (5, 0.1), (6, 0.2), (3, 0.3), (4, 0.4), None
    ]  # fmt: skip


def test_a_run_that_is_over_is_forgotten_and_what_still_happens_to_it_is_harmless() -> None:
    watch = RunObserver(["device-0"])
    watch.event_handled("device-0", RequestArrived(GenerationRequest("left", (1,), 8)), 0.0, ())
    assert not watch._recorder.records
    watch.start("s", "device-0")
    watch.event_handled("device-0", RequestArrived(GenerationRequest("s", (1,), 8)), 0.0, ())
    watch.forget("s")
    watch.work_done(
        "device-0", DraftWork("s", 0, (1,), DraftStopRule(1)), DraftOutcome((5,), {}, ((5, 6, 7),), False, 1), 0, 1
    )
    watch.event_handled("device-0", PeerLost("cloud-0"), 1.0, (EmitTokens("s", (), (), "cancelled"),))
    assert not watch._recorder.records


class Left(RunObserver):
    """Readers that leave when so many events have happened."""

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


def test_nothing_of_a_run_stays_behind_whenever_its_reader_leaves() -> None:
    """Else a page that is open for long fills the memory."""
    for after in range(1, 60, 3):
        w = world(fake_policy("sled"), devices=2, limit=12)
        watch = Left(["device-0", "device-1"], after)
        for call in w.calls:
            watch.start(call.session, "device-0")
        w.simulator._observers = (watch,)
        w.run()
        watch.leave()
        assert watch._recorder.records == watch._device_of == watch._drafted_tokens == {}
        assert not [desk for desk in watch._recorder._workers.values() if desk.waiting_since_s or desk.arrived]
    assert watch._recorder._workers


def test_what_a_remote_cloud_says_is_counted_where_it_arrives() -> None:
    watch = RunObserver(["device-0"], frozenset(["device-0"]))
    watch.start("s", "device-0")
    watch.event_handled("device-0", RequestArrived(GenerationRequest("s", (1,), 8)), 0.0, ())
    watch.event_handled("device-0", MessageReceived(Reply("s", 0, 1, Verdict(0, 7), ("cloud-0",), 0)), 1.0, ())
    assert watch.record("s").downlink_nbytes == REPLY_NBYTES
