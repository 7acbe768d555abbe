"""The radio's energy by request: hand-made messages, tails that requests share, and what is not known."""

from dataclasses import replace

import pytest

from serving.metrics.radio_energy import AwakeTime, Transfer, awake_times, have_time_lines, radio_energies_j
from serving.metrics.recorder import SessionRecord, Timeline
from serving.network.link import Link
from serving.network.radio import Radio

TAIL_S = 4.0
RADIO = Radio(up_j_per_mb=2, down_j_per_mb=1, awake_w=3, tail_w=0.5, tail_s=TAIL_S, wake_j=0.25)
LINK = Link(8, 8, overhead_nbytes=100, radio=RADIO)


@pytest.mark.parametrize(
    ("transfers", "expected"),
    [
        ([(0, 1, "a")], {"a": (1, 4, 1)}),
        ([(0, 1, "a"), (3, 4, "a")], {"a": (2, 2 + 4, 1)}),  # the tail of the first is cut short
        ([(0, 1, "a"), (5, 6, "a")], {"a": (2, 4 + 4, 1)}),  # sent at the last moment of the tail
        ([(0, 1, "a"), (9, 10, "a")], {"a": (2, 4 + 4, 2)}),  # asleep in between
        ([(0, 3, "a"), (1, 2, "a")], {"a": (3, 4, 1)}),  # one within another
        ([(0, 3, "a"), (1, 5, "a")], {"a": (5, 4, 1)}),  # both directions overlap
        ([(0, 2, "a"), (1, 4, "b")], {"a": (2, 0, 1), "b": (2, 4, 0)}),  # two requests share the air
        ([(0, 1, "a"), (3, 4, "b")], {"a": (1, 2, 1), "b": (1, 4, 0)}),  # a pays until b sends
        ([(0, 1, "a"), (9, 10, "b")], {"a": (1, 4, 1), "b": (1, 4, 1)}),
        ([(2, 3, "a"), (0, 1, "a")], {"a": (2, 1 + 4, 1)}),  # in any order
        ([], {}),
    ],
)
def test_awake_times_by_hand(transfers, expected):
    found = awake_times([Transfer(*each) for each in transfers], TAIL_S)
    assert {session: (t.air_s, t.tail_s, t.wakes) for session, t in found.items()} == expected


def test_each_second_awake_is_paid_once():
    """Whoever sends it: the sum over requests is that of one request with all messages."""
    messages = [(0, 1), (0.5, 2), (3, 3), (6.5, 7), (30, 31), (30.2, 30.4)]
    alone = awake_times([Transfer(*each, "a") for each in messages], TAIL_S)["a"]
    shared = awake_times([Transfer(*each, f"r{i % 3}") for i, each in enumerate(messages)], TAIL_S)
    total = [sum(getattr(each, name) for each in shared.values()) for name in AwakeTime.__slots__]
    assert total == pytest.approx([alone.air_s, alone.tail_s, alone.wakes])


def record(session: str, *timeline: tuple[str, float, float, int]) -> SessionRecord:
    made = SessionRecord(session, "device-0", 10, 0.0, timeline=Timeline(timeline))
    made.uplink_messages = sum(lane == "uplink" for lane, *_ in timeline)
    made.uplink_nbytes, made.downlink_nbytes = (
        sum(nbytes for each, _, _, nbytes in timeline if each == lane) for lane in ("uplink", "downlink")
    )
    return made


ASKED = record(
    "asked", ("draft", 0, 1, 4), ("uplink", 1, 2, 999_900), ("verify", 2, 3, 4), ("downlink", 3, 4, 1_999_900)
)
SILENT = record("silent", ("draft", 0, 9, 40))


def test_a_request_pays_for_its_bytes_with_headers_its_air_and_its_tail():
    """1 MB up and 2 MB down are 2 + 2 J, 2 s in the air 6 J, a second between and 4 after 2.5 J, waking 0.25 J."""
    assert radio_energies_j([ASKED, SILENT], LINK) == {"asked": 2 + 2 + 6 + 2.5 + 0.25, "silent": 0.0}


def test_a_link_without_figures_is_unknown_for_those_that_use_it():
    assert radio_energies_j([ASKED, SILENT], replace(LINK, radio=None)) == {"asked": None, "silent": 0.0}


def test_a_request_whose_message_was_lost_is_not_counted():
    lost = record("lost")
    lost.uplink_messages, lost.uplink_nbytes = 1, 16
    assert radio_energies_j([ASKED, lost], LINK, have_time_lines([ASKED, lost])) == {"asked": 12.75, "lost": 0.0}
    assert radio_energies_j([lost], LINK, have_time_lines([ASKED, lost])) == {"lost": 0.0}


def test_without_time_lines_the_radio_is_unknown():
    blind = [replace(each, timeline=Timeline()) for each in (ASKED, SILENT)]
    assert radio_energies_j(blind, LINK, have_time_lines(blind)) == {"asked": None, "silent": 0.0}
