"""A device's way to the target: can it be reached, and in which messages a question travels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from zlib import crc32

from serving.core.kv_accounting import round_up_to_blocks
from serving.core.queued_request import Task
from serving.core.session import Session
from serving.messages import (
    HEADER_NBYTES,
    INF,
    MEDUSA_TREE,
    Commands,
    DropCache,
    Hop,
    LoadReport,
    Release,
    Request,
    SendMessage,
    SequenceSlice,
)
from serving.policy.policy import Policy
from serving.policy.slots.dispatch import Dispatch
from serving.policy.slots.placement import DEVICE_TIER

TierNodes = Mapping[str, tuple[str, ...]]
"""Tier -> the nodes in it; a name that is no tier is a node's own."""

_NOMINAL_TOKEN_S = 0.001
"""Seconds a row, until a node reports its own."""


class NodeSelector:
    """Of `owner`, who asks others: which node of a tier it asks, where caches grow by `block_tokens`."""

    def __init__(self, tiers: TierNodes, dispatch: Dispatch, owner: str, block_tokens: int = 1) -> None:
        self._block_tokens = block_tokens
        self._tiers, self._dispatch, self._num_choices = tiers, dispatch, crc32(owner.encode())
        self.lost_nodes: set[str] = set()
        self.load_reports: dict[str, LoadReport] = {}
        """Of the nodes that reported, or were sent something."""

    def reachable(self, tier: str) -> bool:
        """Is a node of that tier alive?"""
        return any(node not in self.lost_nodes for node in self._tiers.get(tier, (tier,)))

    def reachable_nodes(self, tiers: Sequence[str]) -> list[str]:
        """All living nodes of these tiers."""
        nodes = dict.fromkeys(node for name in tiers for node in self._tiers.get(name, (name,)))
        return [node for node in nodes if node not in self.lost_nodes]

    def mark_lost(self, node: str) -> None:
        self.lost_nodes.add(node)
        self.load_reports.pop(node, None)  # when it is back it has promised nothing

    def mark_restored(self, node: str) -> None:
        self.lost_nodes.discard(node)

    def choose(self, tier: str, seq: SequenceSlice, budget: int) -> str:
        """A living node of the tier `tier`; its first where none lives."""
        known = self._tiers.get(tier, (tier,))
        nodes = [node for node in known if node not in self.lost_nodes]
        if len(nodes) < 2:
            return (nodes or known)[0]
        tokens = round_up_to_blocks(seq.start + seq.num_tokens + budget - 1, self._block_tokens)
        task = Task(seq.session, seq.num_tokens, budget, tokens, self._num_choices)
        node = self._dispatch.choose(task, [self._load_report(n) for n in nodes])
        self._num_choices += 1
        told = self._load_report(node)
        self.load_reports[node] = replace(
            told, queued_s=told.queued_s + task.compute_s(told), free_tokens=told.free_tokens - task.max_cached_len
        )  # fmt: skip
        return node

    def _load_report(self, node: str) -> LoadReport:
        return self.load_reports.get(node) or LoadReport(node, 0.0, _NOMINAL_TOKEN_S, _NOMINAL_TOKEN_S, INF)


class HopPath:
    """`name` is the device that the answers go to; without `hops` there is no target."""

    def __init__(self, name: str, policy: Policy, hops: tuple[Hop, ...], node_selector: NodeSelector) -> None:
        self.name, self.hops = name, hops
        self._node_selector, self._prefill, self._payload = node_selector, policy.prefill, policy.payload
        self._acceptance = policy.draft.acceptance
        self._requested_outputs = (MEDUSA_TREE,) if policy.draft.source == "medusa" else ()
        self.starts_on_device = bool(hops) and hops[0].node == DEVICE_TIER
        """Is its first hop on the device itself?"""
        self._sends_timestamps = policy.monitors_link and not self.starts_on_device

    def reachable(self) -> bool:
        return all(self._node_selector.reachable(hop.node) for hop in self.hops)

    def requests(self, session: Session, seq: SequenceSlice, budget: int, now: float) -> Commands:
        """What asks the route about `seq`, in as many messages as the policy's prefill makes of them."""
        if not session.path:
            stays = session.previous_path and self._node_selector.reachable(session.previous_path[0])
            session.path = (
                session.previous_path
                if stays
                else (self._node_selector.choose(self.hops[0].node, seq, budget), *session.previous_path[1:])
            )
        value = session.expected_tokens(seq.num_drafts, self._acceptance)
        slack_s = _slack_s(session, value, now)
        size = self._prefill.max_chunk_tokens(session)
        if seq.num_tokens <= size:
            return [self._send(session, seq, budget, slack_s, value, now)]
        return [self._send(session, part, budget, slack_s, value, now) for part in _split(seq, size)]

    def _send(
        self, session: Session, part: SequenceSlice, budget: int, slack_s: float, expected_tokens: float, now: float
    ) -> SendMessage:
        request = Request(
            session.attempt, part, self.hops, 0, session.path, self.name, budget, slack_s, expected_tokens, self._requested_outputs, session.request.stop_tokens,
            session.request.slo_tokens_per_s, 0.0, now if self._sends_timestamps else None,
        )  # fmt: skip
        return SendMessage(session.path[0], request, HEADER_NBYTES + part.nbytes + self._payload.nbytes(part))

    def release_commands(self, session: Session) -> Commands:
        """Nobody needs the caches of this session any more: the path's first node tells the others, and where nodes may
        know of it that this does not lead to, all are told.
        """
        name = session.request.session
        nodes = (
            self._node_selector.reachable_nodes([hop.node for hop in self.hops])
            if session.may_have_stale_nodes
            else session.path[:1]
        )
        return [DropCache(name, None), *(SendMessage(node, Release(name), HEADER_NBYTES) for node in nodes)]


def _slack_s(session: Session, expected_tokens: float, now: float) -> float:
    """What is left of the promised time for `expected_tokens` tokens, since the user saw the last one, when drafting
    and the network have had their share (WISP, Eq. 6); for the first tokens the promise of a first token, if there is
    one.
    """
    call = session.request
    if session.num_generated == 0 and call.slo_ttft_s < INF:
        due_s = call.slo_ttft_s
    elif call.slo_tokens_per_s:
        due_s = expected_tokens / call.slo_tokens_per_s
    else:
        return INF
    return session.last_emitted_s + due_s - now - session.network_s


def _split(seq: SequenceSlice, size: int) -> list[SequenceSlice]:
    """Messages of at most `size` rows; the drafts and the row before them stay together."""
    parts, a = [], 0
    while a + size < seq.num_tokens - seq.num_drafts:
        parts.append(seq.narrow(a, a + size))
        a += size
    return [*parts, seq.narrow(a, seq.num_tokens)]
