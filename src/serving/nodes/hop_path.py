"""From a device to the target: `HopPath` turns a slice into requests, `NodeSelector` chooses a node for each hop."""

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
    LossCause,
    PeerLost,
    PeerRestored,
    Release,
    Request,
    SendMessage,
    SequenceSlice,
)
from serving.policy.policy import Policy
from serving.policy.slots.dispatch import Dispatch
from serving.policy.slots.placement import DEVICE_TIER

TierNodes = Mapping[str, tuple[str, ...]]
"""Tier -> its nodes. A name that is not a tier stands for the node of that name."""

_NOMINAL_TOKEN_S = 0.001
"""Assumed seconds per token where nothing times the nodes."""


class NodeSelector:
    """Selects a node of a tier for the requests that `owner` sends, by load reports and what was sent since.

    Args:
        block_tokens: caches grow by blocks of so many tokens.
        idle_reports: node -> what it reports while it has no work, which holds until it reports (Hyperion, Algorithm 2,
            knows the compute and the memory of every node).
    """

    def __init__(
        self,
        tiers: TierNodes,
        dispatch: Dispatch,
        owner: str,
        block_tokens: int = 1,
        idle_reports: Mapping[str, LoadReport] | None = None,
    ) -> None:
        self._block_tokens, self._idle_reports = block_tokens, idle_reports or {}
        self._tiers, self._dispatch, self._owner = tiers, dispatch, owner
        self._num_choices = crc32(owner.encode())
        self.lost_nodes: dict[str, set[LossCause]] = {}
        """Node -> why it is lost."""
        self.load_reports: dict[str, LoadReport] = {}
        """Node -> its last report, plus what `owner` has sent to it since."""

    def reachable(self, tier: str) -> bool:
        """True if a node of that tier is reachable."""
        return any(node not in self.lost_nodes for node in self._tiers.get(tier, (tier,)))

    def nodes(self, tiers: Sequence[str]) -> list[str]:
        """All nodes of these tiers, each once."""
        return list(dict.fromkeys(node for name in tiers for node in self._tiers.get(name, (name,))))

    def reachable_nodes(self, tiers: Sequence[str]) -> list[str]:
        """All reachable nodes of these tiers."""
        return [node for node in self.nodes(tiers) if node not in self.lost_nodes]

    def mark_lost(self, lost: PeerLost) -> None:
        self.lost_nodes.setdefault(lost.peer, set()).add(lost.cause)
        self.load_reports.pop(lost.peer, None)  # when it is restored its load is 0

    def mark_restored(self, restored: PeerRestored) -> bool:
        """Returns True if the node is reachable now: it may be lost for another cause still."""
        causes = self.lost_nodes.get(restored.peer, set())
        causes.discard(restored.cause)
        if not causes:
            self.lost_nodes.pop(restored.peer, None)
        return not causes

    def loss(self, path: Sequence[str]) -> LossCause | None:
        """Why the path cannot be used: a node of it is lost, or else the link to one. None: all are reachable."""
        causes = {cause for node in path for cause in self.lost_nodes.get(node, ())}
        return "node" if "node" in causes else "link" if causes else None

    def choose(self, tier: str, seq: SequenceSlice, budget: int) -> str:
        """A reachable node of the tier, as the dispatch slot chooses; the tier's first node if none is reachable."""
        known = self._tiers.get(tier, (tier,))
        nodes = [node for node in known if node not in self.lost_nodes]
        if len(nodes) < 2:
            return (nodes or known)[0]
        tokens = round_up_to_blocks(seq.start + seq.num_tokens + budget - 1, self._block_tokens)
        task = Task(seq.session, seq.num_tokens, budget, tokens, self._num_choices, self._owner)
        node = self._dispatch.choose(task, [self._load_report(n) for n in nodes])
        self._num_choices += 1
        report = self._load_report(node)
        self.load_reports[node] = replace(
            report,
            queued_s=report.queued_s + task.compute_s(report),
            free_tokens=report.free_tokens - task.max_cached_len,
        )
        return node

    def _load_report(self, node: str) -> LoadReport:
        known = self.load_reports.get(node) or self._idle_reports.get(node)
        return known or LoadReport(node, 0.0, _NOMINAL_TOKEN_S, _NOMINAL_TOKEN_S, INF)


class HopPath:
    """The hops of the target, as the device `name` uses them. Without hops there is no target."""

    def __init__(self, name: str, policy: Policy, hops: tuple[Hop, ...], node_selector: NodeSelector) -> None:
        self.name, self.hops = name, hops
        self._node_selector, self._prefill, self._payload = node_selector, policy.prefill, policy.payload
        self._acceptance = policy.draft.acceptance
        self._requested_outputs = (MEDUSA_TREE,) if policy.draft.source == "medusa" else ()
        self.starts_on_device = bool(hops) and hops[0].node == DEVICE_TIER
        """True if the first hop runs on the device itself."""
        self.later_nodes = frozenset(node_selector.nodes([hop.node for hop in hops[1:]]))
        """The nodes that may serve hops behind the first."""
        self._sends_timestamps = policy.monitors_link and not self.starts_on_device

    def reachable(self) -> bool:
        return all(self._node_selector.reachable(hop.node) for hop in self.hops)

    def loss(self, path: Sequence[str]) -> LossCause | None:
        return self._node_selector.loss(path)

    def requests(self, session: Session, seq: SequenceSlice, budget: int, now: float) -> Commands:
        """The requests that compute and verify `seq`, in chunks as the prefill slot decides.

        Chooses the first hop's node if the session has no path.
        """
        if not session.path:
            previous = session.previous_path
            if previous and self._node_selector.reachable(previous[0]):
                session.path = previous
            else:
                session.path = (self._node_selector.choose(self.hops[0].node, seq, budget), *previous[1:])
        expected_tokens = session.expected_tokens(seq.num_drafts, self._acceptance)
        slack_s = _slack_s(session, expected_tokens, now)
        max_tokens = self._prefill.max_chunk_tokens(session)
        chunks = [seq] if seq.num_tokens <= max_tokens else _split(seq, max_tokens)
        return [self._send(session, chunk, budget, slack_s, expected_tokens, now) for chunk in chunks]

    def _send(
        self, session: Session, chunk: SequenceSlice, budget: int, slack_s: float, expected_tokens: float, now: float
    ) -> SendMessage:
        request = Request(
            session.attempt,
            chunk,
            self.hops,
            0,
            session.path,
            self.name,
            budget,
            slack_s,
            expected_tokens,
            self._requested_outputs,
            session.request.stop_tokens,
            session.request.slo_tokens_per_s,
            sent_s=now if self._sends_timestamps else None,
            stop_text=session.stop_text if budget > 1 else None,
        )
        return SendMessage(session.path[0], request, HEADER_NBYTES + chunk.nbytes + self._payload.nbytes(chunk))

    def release_commands(self, session: Session, keep_draft_cache: bool = False) -> Commands:
        """Frees the session's caches everywhere, the draft model's unless `keep_draft_cache`. The first node of the
        path tells the others; where nodes outside the path may hold caches too, every node is told.
        """
        name = session.request.session
        nodes = (
            self._node_selector.reachable_nodes([hop.node for hop in self.hops])
            if session.may_have_stale_nodes
            else session.path[:1]
        )
        own: Commands = [] if keep_draft_cache else [DropCache(name, None)]
        return [*own, *(SendMessage(node, Release(name), HEADER_NBYTES) for node in nodes)]


def _slack_s(session: Session, expected_tokens: float, now: float) -> float:
    """Seconds until the reply must leave to keep the SLO (WISP, Eq. 6); infinite without an SLO.

    The promised time for `expected_tokens` tokens counts from the last emitted token; drafting and the network have
    taken their share of it. For the first token it is the promised TTFT, if there is one, which counts from the
    request's arrival.
    """
    request = session.request
    if session.num_generated == 0 and request.slo_ttft_s < INF:
        due_s = session.arrived_s + request.slo_ttft_s
    elif request.slo_tokens_per_s:
        due_s = session.last_emitted_s + expected_tokens / request.slo_tokens_per_s
    else:
        return INF
    return due_s - now - session.network_s


def _split(seq: SequenceSlice, max_tokens: int) -> list[SequenceSlice]:
    """Chunks of at most `max_tokens` tokens; the drafts stay together with the token before them."""
    chunks, begin = [], 0
    while begin + max_tokens < seq.num_tokens - seq.num_drafts:
        chunks.append(seq.narrow(begin, begin + max_tokens))
        begin += max_tokens
    return [*chunks, seq.narrow(begin, seq.num_tokens)]
