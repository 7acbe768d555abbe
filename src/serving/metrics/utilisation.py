"""Utilisation and memory of each tier's nodes, and the stalls of devices (Synera, section 3.3)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from serving.deployment.topology import Topology
from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet
from serving.messages import (
    INF,
    Command,
    DropCache,
    Event,
    ForwardWork,
    Message,
    Outcome,
    Work,
    drafts_of,
)
from serving.metrics.recorder import SessionRecord, Timeline


@dataclass(slots=True)
class _Caches:
    """The tokens that one model's caches hold on one node."""

    lengths: dict[str, int] = field(default_factory=dict)
    total: int = 0
    peak: int = 0

    def resize(self, session: str, length: int) -> None:
        self.total += length - self.lengths.get(session, 0)
        self.lengths[session] = length

    def drop(self, session: str) -> None:
        self.total -= self.lengths.pop(session, 0)

    def clear(self) -> None:
        self.lengths.clear()
        self.total = 0


class UtilisationObserver:
    """An observer of busy time and cached tokens of the cloud's nodes."""

    is_per_node: ClassVar[Literal[True]] = True

    def __init__(self) -> None:
        self.busy_s: dict[str, float] = defaultdict(float)
        self._target_caches: dict[str, _Caches] = defaultdict(_Caches)
        self._drafter_caches: dict[str, _Caches] = defaultdict(_Caches)

    @property
    def peak_cache_tokens(self) -> dict[str, int]:
        """Per node, the most tokens that its caches of the target held at one time."""
        return {node: caches.peak for node, caches in self._target_caches.items()}

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        for command in commands:
            if type(command) is DropCache:
                held = self._drafter_caches if command.start_layer is None else self._target_caches
                held[node].drop(command.session)

    def node_created(self, node: str, at_s: float) -> None:  # noqa: ARG002
        """A restarted node has empty caches."""
        self._target_caches[node].clear()
        self._drafter_caches[node].clear()

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        self.busy_s[node] += end_s - begin_s
        caches = (self._target_caches if isinstance(work, ForwardWork) else self._drafter_caches)[node]
        if isinstance(work, ForwardWork):
            for seq in work.slices:
                caches.resize(seq.session, seq.start + seq.num_tokens)
        else:
            for draft, drafted in drafts_of(work, outcome):
                caches.resize(draft.session, drafted.cached_len)
        caches.peak = max(caches.peak, caches.total)

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...

    def by_tier(self, topology: Topology, records: Iterable[SessionRecord]) -> dict[str, dict[str, float]]:
        """Per tier: `utilisation`, busy time over the time with any session, mean over its nodes; `memory_share`,
        weights and peak caches (a drafter's beside the target too) over a node's memory, mean; `blocks` of the timed
        model; `nodes`.
        """
        open_s = covered_s((record.arrived_s, record.ended_s) for record in records)
        return {tier: self._tier_metrics(topology, tier, nodes, open_s) for tier, nodes in topology.tiers.items()}

    def _tier_metrics(self, topology: Topology, tier: str, nodes: tuple[str, ...], open_s: float) -> dict[str, float]:
        parts = [(hop.span, topology.setup.hop_architecture(hop)) for hop in topology.setup.hops if hop.node == tier]
        found = {
            "nodes": float(len(nodes)),
            "blocks": float(sum(span.end_layer - span.start_layer for span, _ in parts)),
        }
        if open_s > 0:
            chips = len(nodes) * topology.setup.chip_sets_per_cloud_node
            found["utilisation"] = sum(self.busy_s[node] for node in nodes) / chips / open_s
        shares = []
        for node in nodes:
            fleet = topology.cloud_fleets[node]
            for _, part in parts if fleet.memory_nbytes else ():
                held = _nbytes(part, fleet, self._target_caches[node])
                if drafter := topology.setup.cloud_drafter:
                    held += _nbytes(drafter, fleet, self._drafter_caches[node])
                shares.append(held / topology.setup.chip_sets_per_cloud_node / (fleet.memory_nbytes or 1.0))
        return found | ({"memory_share": sum(shares) / len(shares)} if shares else {})


def _nbytes(model: Architecture, fleet: Fleet, caches: _Caches) -> float:
    """Bytes of a model's weights and of its caches at their fullest."""
    per_token = model.kv_nbytes_per_token(fleet.precision)
    return model.weights_nbytes(fleet.precision) + caches.peak * per_token


def covered_s(spans: Iterable[tuple[float, float | None]]) -> float:
    """The seconds that these spans cover together; a span without an end is ignored."""
    total_s, until_s = 0.0, float("-inf")
    for begin_s, end_s in sorted((a, b) for a, b in spans if b is not None):
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


def idle_times(records: Sequence[SessionRecord]) -> dict[str, float]:
    """The seconds for which the chip of one device waits, by session, from each one's start to its end.

    Seconds in which several sessions are open are counted once, and shared out by what each would wait alone.
    """
    spans = {one.session: _open_span(one) for one in records}
    alone = {
        one.session: max(0.0, spans[one.session][1] - spans[one.session][0] - one.device_busy_s) for one in records
    }
    together_s = covered_s(spans.values())
    if together_s >= sum(end_s - begin_s for begin_s, end_s in spans.values()) * (1 - 1e-9):
        return alone
    busy_s = sum(min(one.device_busy_s, spans[one.session][1] - spans[one.session][0]) for one in records)
    idle_s, total_s = together_s - busy_s, sum(alone.values())
    share = min(1.0, max(0.0, idle_s) / total_s) if total_s else 0.0
    return {session: share * own_s for session, own_s in alone.items()}


def _open_span(record: SessionRecord) -> tuple[float, float]:
    begin_s = record.arrived_s if record.started_s is None else record.started_s
    return begin_s, max(begin_s, record.arrived_s if record.ended_s is None else record.ended_s)


TimeSpan = tuple[float, float]

_LINK_LANES, _DEVICE_LANES = ("uplink", "downlink"), ("draft", "device_layers")
_CLOUD_LANES = ("queue", "prefill", "cloud_draft", "verify", "decode")


class StallTimes(NamedTuple):
    """Seconds that a device stalled for the link and for the cloud, and that its requests were in the cloud."""

    link_s: float
    cloud_s: float
    cloud_residence_s: float


def stall_times(timeline: Timeline, ended_s: float = INF) -> StallTimes:
    """Stalls in a session's time line: a message is in transit or the cloud has the request, and the device does not
    compute.

    Where a message overlaps with work in the cloud, as with a chunked prompt, the stall is the cloud's. Time after
    `ended_s` does not count: only the session's release is sent then.
    """
    own, cloud, link = (
        _merged(timeline.spans(*lanes), ended_s) for lanes in (_DEVICE_LANES, _CLOUD_LANES, _LINK_LANES)
    )
    waiting_cloud = _subtracted(cloud, own)
    waiting_link = _subtracted(_subtracted(link, own), cloud)
    return StallTimes(_total_s(waiting_link), _total_s(waiting_cloud), _total_s(cloud))


def _merged(spans: Sequence[tuple[float, float, int]], ended_s: float) -> list[TimeSpan]:
    """What the spans cover together until `ended_s`, sorted and disjoint."""
    found: list[TimeSpan] = []
    for begin, end, _ in sorted(spans):
        if begin >= ended_s:
            break
        end = min(end, ended_s)
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _subtracted(spans: Sequence[TimeSpan], others: Sequence[TimeSpan]) -> list[TimeSpan]:
    """The parts of `spans` that `others` do not cover; both are sorted and disjoint."""
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


def _total_s(spans: Iterable[TimeSpan]) -> float:
    return sum(end - begin for begin, end in spans)
