"""Bounds of memory and waiting time: back-off, outbox and session owners."""

import asyncio
from dataclasses import replace

import pytest

from serving.messages import LoadReport, Release
from serving.transport.client import ReconnectBackoff
from serving.transport.connection import EvictedSession, SessionOwners
from serving.transport.limits import Limits, ProtocolError
from serving.transport.stream import Outbox
from tests.serving.transport.transport_peers import request, run_scenario, soon


def test_reconnect_delays_double_up_to_a_bound_and_differ_between_devices() -> None:
    waits = [ReconnectBackoff(0.1, 2.0, stream) for stream in (1, 2)]
    first, second = ([each.next_delay_s() for _ in range(12)] for each in waits)
    assert first != second
    for i, wait_s in enumerate(first):
        whole = min(2.0, 0.1 * 2**i)
        assert whole / 2 <= wait_s <= whole
    waits[0].reset()
    assert waits[0].next_delay_s() <= 0.1
    assert [ReconnectBackoff(0.1, 2.0, 1).next_delay_s() for _ in range(2)] == [first[0]] * 2


@pytest.mark.parametrize("limits", [Limits(outbox_messages=3), Limits(message_nbytes=4, outbox_nbytes=12)])
def test_a_full_outbox_resets_the_stream(limits: Limits) -> None:
    async def scenario() -> None:
        outbox = Outbox(limits)
        for _ in range(3):
            outbox.put(b"1234")
        fault = asyncio.ensure_future(outbox.fault())
        await asyncio.sleep(0)
        assert not fault.done()
        outbox.put(b"1234")
        with pytest.raises(ProtocolError, match="too slow: 3 messages of 12 bytes"):
            await soon(fault)

    run_scenario(scenario)


def test_an_outbox_keeps_order_and_ends_with_the_last_frame() -> None:
    async def scenario() -> None:
        outbox = Outbox(Limits())
        outbox.put(b"1")
        outbox.close(b"bye")
        outbox.put(b"too late")
        assert [await outbox.take() for _ in range(3)] == [b"1", b"bye", None]

    run_scenario(scenario)


def admit(
    owners: SessionOwners, session: str, device: str, to: str = "cloud-0", attempt: int = 0
) -> EvictedSession | None:
    return owners.admit((device,), to, replace(request(session, device), attempt=attempt))[1]


def test_a_session_is_free_after_all_its_nodes_received_its_release() -> None:
    owners = SessionOwners(max_sessions=9, max_disconnected=9)
    admit(owners, "s", "a", "cloud-0")
    admit(owners, "s", "a", "cloud-1")
    with pytest.raises(ProtocolError, match="another host"):
        admit(owners, "s", "b")
    assert owners.admit(("a",), "cloud-0", Release("s")) == (True, None)
    assert owners.admit(("a",), "cloud-0", Release("s")) == (False, None)
    with pytest.raises(ProtocolError, match="another host"):
        admit(owners, "s", "b")
    owners.admit(("a",), "cloud-1", Release("s"))
    assert owners.num_sessions == 0
    admit(owners, "s", "b")


def test_a_session_stays_with_the_node_of_its_host_that_opened_it() -> None:
    owners, nodes = SessionOwners(max_sessions=2, max_disconnected=9), ("page-0", "page-1")
    owners.admit(nodes, "cloud", request("s", "page-0"))
    with pytest.raises(ProtocolError, match="'page-1' did not open 's'; 'page-0' did"):
        owners.admit(nodes, "cloud", request("s", "page-1"))
    owners.admit(nodes, "cloud", Release("s"))
    owners.restarted(nodes)
    assert owners.num_sessions == 0
    owners.admit(nodes, "cloud", request("s", "page-1"))


def test_a_device_may_release_a_session_that_a_trusted_node_forwarded() -> None:
    owners = SessionOwners(max_sessions=1, max_disconnected=9)
    for session in "st":
        owners.record_trusted("nx-0", request(session, "a"))
    with pytest.raises(ProtocolError, match="another host"):
        owners.admit(("b",), "nx-0", Release("s"))
    assert owners.admit(("a",), "nx-0", Release("s")) == (True, None)
    owners.record_trusted("nx-0", Release("t"))
    assert owners.admit(("a",), "nx-0", Release("t")) == (False, None)
    assert owners.num_sessions == 0


def test_sessions_of_disconnected_owners_are_kept_up_to_a_bound() -> None:
    owners = SessionOwners(max_sessions=9, max_disconnected=2)
    for device in "abc":
        admit(owners, f"of-{device}", device)
        owners.disconnected((device,))
    assert owners.num_sessions == 2
    admit(owners, "of-a", "thief")
    with pytest.raises(ProtocolError, match="another host"):
        admit(owners, "of-b", "thief")


def test_the_least_recently_used_session_makes_room() -> None:
    owners = SessionOwners(max_sessions=2, max_disconnected=9)
    assert admit(owners, "s", "a", "cloud-1") is None
    assert admit(owners, "s", "a", "cloud-0", attempt=3) is None
    assert admit(owners, "t", "a") is None
    assert admit(owners, "s", "a", attempt=4) is None
    assert admit(owners, "u", "a") == EvictedSession("t", "a", ("cloud-0",), 0)
    assert admit(owners, "v", "a") == EvictedSession("s", "a", ("cloud-0", "cloud-1"), 4)
    assert admit(owners, "of-b", "b") is None
    assert owners.num_sessions == 3


def test_a_restarted_device_has_no_sessions() -> None:
    owners = SessionOwners(max_sessions=9, max_disconnected=9)
    admit(owners, "s", "a")
    owners.restarted(("a",))
    assert owners.num_sessions == 0


def test_a_load_report_belongs_to_no_session() -> None:
    assert SessionOwners(1, 1).admit(("a",), "b", LoadReport("a", 0, 0, 0, 0)) == (True, None)
