"""A device's way to the target: can it be reached, and in which messages a question travels."""

from serving.messages import HEADER_NBYTES, INF, Command, Drop, Hop, Release, Request, Rows, Send
from serving.nodes.chooser import Chooser
from serving.nodes.session import Session
from serving.policy import Policy

Commands = list[Command]


class Route:
    """`name` is the device that the answers go to; without `hops` there is no target."""

    def __init__(self, name: str, policy: Policy, hops: tuple[Hop, ...], chooser: Chooser) -> None:
        self.name, self.hops = name, hops
        self._chooser, self._prefill, self._exchange = chooser, policy.prefill, policy.exchange
        self._probes = ("heads",) if policy.draft.source == "heads" else ()

    def reachable(self) -> bool:
        return all(self._chooser.reachable(hop.node) for hop in self.hops)

    def requests(self, s: Session, rows: Rows, budget: int) -> Commands:
        """What asks the route about `rows`, in as many messages as the policy's prefill makes of them."""
        if not s.path:
            s.path = (self._chooser.choose(self.hops[0].node, rows.n),)
        value, rate = 1.0 + rows.check, s.call.rate
        deadline = s.seen_s + value / rate if rate and rows.rule else INF
        size = self._prefill.chunk(s)
        if rows.n <= size:
            return [self._send(s, rows, budget, deadline, value)]
        return [self._send(s, part, budget, deadline, value) for part in _parts(rows, size)]

    def _send(self, s: Session, part: Rows, budget: int, deadline: float, value: float) -> Send:
        request = Request(
            s.round, part, self.hops, 0, s.path, self.name, budget, deadline, value, self._probes, s.call.ends
        )
        return Send(s.path[0], request, HEADER_NBYTES + part.nbytes + self._exchange.nbytes(part))


def released(s: Session) -> Commands:
    """Nobody needs the caches of this session any more."""
    name = s.call.session
    return [Drop(name, None), *(Send(node, Release(name), HEADER_NBYTES) for node in dict.fromkeys(s.path))]


def _parts(rows: Rows, size: int) -> list[Rows]:
    """Messages of at most `size` rows; the drafts and the row before them stay together."""
    parts, a = [], 0
    while a + size < rows.n - rows.check:
        parts.append(rows.cut(a, a + size))
        a += size
    return [*parts, rows.cut(a, rows.n)]
