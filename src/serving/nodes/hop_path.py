"""A device's way to the target: can it be reached, and in which messages a question travels."""

from serving.core.session import Session
from serving.messages import HEADER_NBYTES, HEADS, INF, Command, Drop, Hop, Release, Request, Rows, Send
from serving.nodes.node_selector import Chooser
from serving.policy.policy import Policy
from serving.policy.slots.placement import HERE

Commands = list[Command]


class Route:
    """`name` is the device that the answers go to; without `hops` there is no target."""

    def __init__(self, name: str, policy: Policy, hops: tuple[Hop, ...], chooser: Chooser) -> None:
        self.name, self.hops = name, hops
        self._chooser, self._prefill, self._exchange = chooser, policy.prefill, policy.exchange
        self._acceptance = policy.draft.acceptance
        self._probes = (HEADS,) if policy.draft.source == "heads" else ()
        self.begins_here = bool(hops) and hops[0].node == HERE
        """Is its first hop on the device itself?"""
        self._stamps = policy.monitors and not self.begins_here

    def reachable(self) -> bool:
        return all(self._chooser.reachable(hop.node) for hop in self.hops)

    def requests(self, s: Session, rows: Rows, budget: int, now: float) -> Commands:
        """What asks the route about `rows`, in as many messages as the policy's prefill makes of them."""
        if not s.path:
            stays = s.home and self._chooser.reachable(s.home[0])
            s.path = s.home if stays else (self._chooser.choose(self.hops[0].node, rows, budget), *s.home[1:])
        value = s.worth(rows.check, self._acceptance)
        slack_s = _slack_s(s, value, now)
        size = self._prefill.chunk(s)
        if rows.n <= size:
            return [self._send(s, rows, budget, slack_s, value, now)]
        return [self._send(s, part, budget, slack_s, value, now) for part in _parts(rows, size)]

    def _send(self, s: Session, part: Rows, budget: int, slack_s: float, value: float, now: float) -> Send:
        request = Request(
            s.round, part, self.hops, 0, s.path, self.name, budget, slack_s, value, self._probes, s.call.ends,
            s.call.rate, 0.0, now if self._stamps else None,
        )  # fmt: skip
        return Send(s.path[0], request, HEADER_NBYTES + part.nbytes + self._exchange.nbytes(part))

    def released(self, s: Session) -> Commands:
        """Nobody needs the caches of this session any more: the path's first node tells the others, and where nodes may
        know of it that this does not lead to, all are told.
        """
        name = s.call.session
        nodes = self._chooser.living([hop.node for hop in self.hops]) if s.astray else s.path[:1]
        return [Drop(name, None), *(Send(node, Release(name), HEADER_NBYTES) for node in nodes)]


def _slack_s(s: Session, value: float, now: float) -> float:
    """What is left of the promised time for `value` tokens, since the user saw the last one, when drafting and the
    network have had their share (WISP, Eq. 6); for the first tokens the promise of a first token, if there is one.
    """
    call = s.call
    if s.written == 0 and call.ttft_s < INF:
        due_s = call.ttft_s
    elif call.rate:
        due_s = value / call.rate
    else:
        return INF
    return s.seen_s + due_s - now - s.network_s


def _parts(rows: Rows, size: int) -> list[Rows]:
    """Messages of at most `size` rows; the drafts and the row before them stay together."""
    parts, a = [], 0
    while a + size < rows.n - rows.check:
        parts.append(rows.cut(a, a + size))
        a += size
    return [*parts, rows.cut(a, rows.n)]
