"""How busy and how full the nodes of each tier were.

How long a session's device stood still, and for whom (Synera, section 3.3).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from serving.deployment.topology import Cast
from serving.messages import INF, Command, Drop, Event, Forward, Message, Outcome, Received, Release, Work
from serving.metrics.recorder import Record


class Occupancy:
    """An observer of the nodes of a cloud."""

    def __init__(self) -> None:
        self.busy_s: dict[str, float] = defaultdict(float)
        self.most_tokens: dict[str, int] = defaultdict(int)
        """Per node, the most tokens that its caches held at one time, of whichever sessions."""
        self._tokens: dict[str, dict[str, int]] = defaultdict(dict)
        self._held: dict[str, int] = defaultdict(int)

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if type(event) is Received and type(event.message) is Release:
            self._gone(node, event.message.session)
        for command in commands:
            if type(command) is Drop:
                self._gone(node, command.session)

    def born(self, node: str, at: float) -> None:  # noqa: ARG002
        """Whatever was there before it holds nothing any more."""
        self._tokens[node].clear()
        self._held[node] = 0

    def _gone(self, node: str, session: str) -> None:
        self._held[node] -= self._tokens[node].pop(session, 0)

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if not isinstance(work, Forward):
            return
        self.busy_s[node] += end_s - begin_s
        tokens = self._tokens[node]
        for rows in work.rows:
            length = rows.start + rows.n
            self._held[node] += length - tokens.get(rows.session, 0)
            tokens[rows.session] = length
        self.most_tokens[node] = max(self.most_tokens[node], self._held[node])

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...

    def by_tier(self, cast: Cast, records: Iterable[Record]) -> dict[str, dict[str, float]]:
        """For each tier: `busy`, the share of the time in which any request was under way, its nodes' mean; `memory`,
        weights and the fullest caches over what a node has, their mean; `blocks` of the timed model; `nodes`.
        """
        open_s = under_way_s((record.arrived_s, record.ended_s) for record in records)
        return {tier: self._tier(cast, tier, nodes, open_s) for tier, nodes in cast.tiers.items()}

    def _tier(self, cast: Cast, tier: str, nodes: tuple[str, ...], open_s: float) -> dict[str, float]:
        held = [(hop.span, cast.setup.part(hop)) for hop in cast.setup.hops if hop.node == tier]
        found = {"nodes": float(len(nodes)), "blocks": float(sum(span.last - span.first for span, _ in held))}
        if open_s > 0:
            found["busy"] = sum(self.busy_s[node] for node in nodes) / len(nodes) / open_s
        shares = []
        for node in nodes:
            fleet = cast.cloud_fleets[node]
            for _, part in held if fleet.memory_nbytes else ():
                cache = self.most_tokens[node] * part.kv_nbytes_per_token(fleet.precision)
                shares.append((part.weights_nbytes(fleet.precision) + cache) / (fleet.memory_nbytes or 1.0))
        return found | ({"memory": sum(shares) / len(shares)} if shares else {})


def under_way_s(spans: Iterable[tuple[float, float | None]]) -> float:
    """How long any of these spans of time lasted; one without an end is none."""
    total_s, until_s = 0.0, float("-inf")
    for begin_s, end_s in sorted((a, b) for a, b in spans if b is not None):
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


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
