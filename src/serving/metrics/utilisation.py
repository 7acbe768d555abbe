"""How busy and how full the nodes of each tier were."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from serving.deployment.topology import Cast
from serving.messages import Command, Drop, Event, Forward, Message, Outcome, Received, Release, Work
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
