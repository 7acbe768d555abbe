"""A device's way to the target: can it be reached, and in which messages a question travels."""

from serving.core.session import Session
from serving.messages import (
    HEADER_NBYTES,
    INF,
    MEDUSA_TREE,
    Command,
    DropCache,
    Hop,
    Release,
    Request,
    SendMessage,
    SequenceSlice,
)
from serving.nodes.node_selector import NodeSelector
from serving.policy.policy import Policy
from serving.policy.slots.placement import DEVICE_TIER

Commands = list[Command]


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
