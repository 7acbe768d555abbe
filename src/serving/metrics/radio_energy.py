"""The energy of a device's radio, request by request, from the messages in the records of a run.

The radio is awake from the moment at which a message leaves for the link until it has arrived, and for its tail after
the last one. Requests of one device share the radio: each second awake belongs to one of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from serving.metrics.recorder import SessionRecord
from serving.network.link import Link

_WAYS = ("uplink", "downlink")


class Transfer(NamedTuple):
    """A message in the air, of one session; seconds of the run."""

    sent_s: float
    arrives_s: float
    session: str


@dataclass(slots=True)
class AwakeTime:
    """What one session keeps the radio awake for."""

    air_s: float = 0.0
    tail_s: float = 0.0
    wakes: int = 0


def have_time_lines(records: Iterable[SessionRecord]) -> bool:
    """True if a run recorded time lines. One record cannot tell: it has none, either, if all its messages were lost."""
    return any(record.timeline for record in records)


def radio_energies_j(
    records: Sequence[SessionRecord], link: Link, with_time_lines: bool = True
) -> dict[str, float | None]:
    """Joules of the radio for each session of one device; its messages take `link`.

    0 for a session without messages. None where the link has no radio figures, or the run no time lines. Messages
    that never arrived are not counted, nor is what the transport sends again (`Link.loss`).
    """
    used = {record.session: record for record in records if record.uplink_messages or record.downlink_nbytes}
    energies: dict[str, float | None] = {record.session: 0.0 for record in records}
    if link.radio is None or not with_time_lines:
        return energies | dict.fromkeys(used)
    messages = {session: [record.timeline.spans(way) for way in _WAYS] for session, record in used.items()}
    awake = awake_times(
        [Transfer(sent_s, arrives_s, session) for session, ways in messages.items() for way in ways
         for sent_s, arrives_s, _ in way],
        link.radio.tail_s,
    )  # fmt: skip
    for session, ways in messages.items():
        up, down = (sum(nbytes for _, _, nbytes in way) + link.overhead_nbytes * len(way) for way in ways)
        own = awake[session]
        energies[session] = link.radio.joules(up, down, own.air_s, own.tail_s, own.wakes)
    return energies


def awake_times(transfers: Sequence[Transfer], tail_s: float) -> dict[str, AwakeTime]:
    """The time for which each session keeps the radio of one device awake.

    A second with several messages in the air is that of the one sent first; a tail is that of the message before it.
    """
    found: dict[str, AwakeTime] = defaultdict(AwakeTime)
    last, air_until_s = "", -inf
    for sent_s, arrives_s, session in sorted(transfers):
        silent_s = sent_s - air_until_s
        if silent_s > 0 and last:
            found[last].tail_s += min(silent_s, tail_s)
        found[session].wakes += silent_s > tail_s
        if arrives_s >= air_until_s:
            found[session].air_s += arrives_s - max(sent_s, air_until_s)
            last, air_until_s = session, arrives_s
    if last:
        found[last].tail_s += tail_s
    return found
