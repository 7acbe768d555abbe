"""What is seen of a run, and that nothing of it stays."""

from typing import Any

from fake_world import policy as fake_policy
from fake_world import world

from serving.frontend.ui.token_trace import Watch
from serving.messages import REPLY_NBYTES, Begin, Call, Deliver, Drafted, Generate, Lost, Received, Reply, Stop, Verdict


def test_a_look_is_of_the_token_that_stands_or_of_the_devices_own() -> None:
    watch = Watch(["device-0"])
    watch.begin("s", "device-0")
    watch.handled("device-0", Begin(Call("s", (1, 2), 8)), 0.0, ())
    plain = Generate("s", 0, (1, 2), Stop(2))
    watch.ran("device-0", plain, Drafted((5, 6), {"route": (0.1, 0.2)}, ((5, 7, 8), (6, 7, 8)), False, 4), 0, 1)
    ahead = Generate("s", 3, (), Stop(1), branches=((5,), (5, 9)))
    watch.ran("device-0", ahead, Drafted((3, 4), {"route": (0.3, 0.4)}, ((3, 1, 0), (4, 1, 0)), False, 4), 1, 2)
    looks = {at: watch.look("s", at, token) for at, token in ((2, 5), (3, 99), (4, 3), (5, 4), (6, 1))}
    assert [look and (look.token, look.scores["route"]) for look in looks.values()] == [
        (5, 0.1), (6, 0.2), (3, 0.3), (4, 0.4), None
    ]  # fmt: skip


def test_a_run_that_is_over_is_forgotten_and_what_still_happens_to_it_is_harmless() -> None:
    watch = Watch(["device-0"])
    watch.handled("device-0", Begin(Call("left", (1,), 8)), 0.0, ())
    assert not watch._recorder.records
    watch.begin("s", "device-0")
    watch.handled("device-0", Begin(Call("s", (1,), 8)), 0.0, ())
    watch.forget("s")
    watch.ran("device-0", Generate("s", 0, (1,), Stop(1)), Drafted((5,), {}, ((5, 6, 7),), False, 1), 0, 1)
    watch.handled("device-0", Lost("cloud-0"), 1.0, (Deliver("s", (), (), "cancelled"),))
    assert not watch._recorder.records


class Left(Watch):
    """Readers that leave when so many events have happened."""

    def __init__(self, devices: list[str], after: int) -> None:
        super().__init__(devices)
        self.after = after

    def handled(self, *what: Any) -> None:
        super().handled(*what)
        self.after -= 1
        if not self.after:
            self.leave()

    def leave(self) -> None:
        for session in list(self._at):
            self.forget(session)


def test_nothing_of_a_run_stays_behind_whenever_its_reader_leaves() -> None:
    """Else a page that is open for long fills the memory."""
    for after in range(1, 60, 3):
        w = world(fake_policy("sled"), devices=2, limit=12)
        watch = Left(["device-0", "device-1"], after)
        for call in w.calls:
            watch.begin(call.session, "device-0")
        w.simulator._observers = (watch,)
        w.run()
        watch.leave()
        assert watch._recorder.records == watch._at == watch._looks == {}
        assert not [desk for desk in watch._recorder._desks.values() if desk.since_s or desk.arrived]
    assert watch._recorder._desks


def test_what_a_remote_cloud_says_is_counted_where_it_arrives() -> None:
    watch = Watch(["device-0"], frozenset(["device-0"]))
    watch.begin("s", "device-0")
    watch.handled("device-0", Begin(Call("s", (1,), 8)), 0.0, ())
    watch.handled("device-0", Received(Reply("s", 0, 1, Verdict(0, 7), ("cloud-0",), 0)), 1.0, ())
    assert watch.record("s").downlink_nbytes == REPLY_NBYTES
