"""Outages of a link during a run: the schedule is endless, the run is not."""

from typing import Any

import pytest

from serving.messages import MessageReceived, PeerLost, PeerRestored
from serving.network.link import Link
from serving.network.outages import ListedOutages, PeriodicOutages
from serving.policy.slots.link_loss import LinkLoss
from serving.runtimes.emulated import simulate
from tests.support.fake_pair import own_text
from tests.support.fake_setup import models, queries, setup


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[float, str, Any]] = []

    def event_handled(self, node: str, event: Any, now: float, commands: Any) -> None:
        if not isinstance(event, MessageReceived):
            self.events.append((now, node, event))

    def work_done(self, *_: object) -> None: ...

    def message_sent(self, *_: object) -> None: ...


def shaky(**outages: Any) -> Link:
    return Link(10.0, 10.0, delay_ms=20, detect_ms=50, outages=PeriodicOutages(**outages))


@pytest.mark.parametrize("action", ["wait", "local"])
@pytest.mark.parametrize("name", ["sled", "synera", "cloud_centric"])
def test_every_request_is_answered_despite_outages(name: str, action: str) -> None:
    if name == "cloud_centric" and action == "local":
        pytest.skip("there is no model on the device to go on with")
    made = setup(name, network=shaky(period_s=0.7, duration_s=0.3), override={"link_loss": LinkLoss(action)})  # type: ignore[arg-type]
    records = simulate(made, models(), queries(6))
    assert [r.ending for r in records.values()] == ["complete"] * 6
    for i, record in enumerate(records[f"r{i:05d}"] for i in range(6)):
        whole = own_text(tuple(range(i + 1, i + 13)), 24)
        offline = record.origins.count("offline")
        assert len(record.tokens) == 24
        if action == "wait" and name != "synera":
            assert tuple(record.tokens) == whole
            assert not offline
    if action == "local":
        assert any("offline" in record.origins for record in records.values())


def test_both_ends_are_notified_when_an_outage_is_detected_and_ends() -> None:
    heard = Heard()
    link = Link(10.0, 10.0, detect_ms=50, outages=ListedOutages(((0.1, 0.5), (0.6, 0.62), (0.8, 0.9))))
    simulate(setup("sled", devices=1, network=link), models(), queries(4, 1), observers=[heard])
    told = [
        (round(now, 3), node, event) for now, node, event in heard.events if isinstance(event, PeerLost | PeerRestored)
    ]
    assert told == [
        (at, node, kind(peer, "link"))
        for at, kind in ((0.15, PeerLost), (0.5, PeerRestored), (0.85, PeerLost), (0.9, PeerRestored))
        for node, peer in (("device-0", "cloud-0"), ("cloud-0", "device-0"))
    ]
