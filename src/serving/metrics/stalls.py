"""How long a session's device stood still, and for whom (Synera, section 3.3)."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from serving.messages import INF

Span = tuple[float, float]

_LINK, _CLOUD, _OWN = ("uplink", "downlink"), ("queue", "prefill", "verify", "decode"), ("draft",)


class Stalls(NamedTuple):
    """Seconds, and how long its questions were in the cloud, stood still or not."""

    link_s: float
    cloud_s: float
    resident_s: float


def stalls(line: Sequence[tuple[str, float, float, int]], ended_s: float = INF) -> Stalls:
    """From a session's time line: while a message is under way, or the cloud has it, and the device does not draft.

    Where a message overlaps with work in the cloud, as a prompt in parts does, the cloud counts. Nobody waits any more
    from `ended_s` on: the cloud is told then that it may forget the session.
    """
    until = [(lane, begin, min(end, ended_s)) for lane, begin, end, _ in line if begin < ended_s]
    own, cloud, link = (_union((a, b) for lane, a, b in until if lane in lanes) for lanes in (_OWN, _CLOUD, _LINK))
    waiting_cloud = _without(cloud, own)
    waiting_link = _without(_without(link, own), cloud)
    return Stalls(_length(waiting_link), _length(waiting_cloud), _length(cloud))


def _union(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What of the spans no other covers; both in order and apart."""
    found, i = [], 0
    for begin, end in spans:
        while i < len(others) and others[i][1] <= begin:
            i += 1
        at, j = begin, i
        while j < len(others) and others[j][0] < end:
            if others[j][0] > at:
                found.append((at, others[j][0]))
            at, j = max(at, others[j][1]), j + 1
        if at < end:
            found.append((at, end))
    return found


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)
