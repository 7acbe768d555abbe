"""A message off the wire, once everything in it has been checked."""

from collections.abc import Sequence

from serving.messages import INF, Backlog, Blob, Condition, Hop, Message, Miss, Release, Reply, Request, Span, Verdict
from serving.transport import checks
from serving.transport import tandem_pb2 as pb
from serving.transport.decode_rows import RowsDecoder
from serving.transport.errors import invalid
from serving.transport.known import Known
from serving.transport.limits import Limits

_LONGEST_S = 1e9
_FASTEST = 1e6
"""Tokens a second that may be promised at most."""


class Decoder:
    """Reads what one remote host says. Every method raises RefusedError (INVALID_ARGUMENT) naming the field.

    Args:
        tensors: did both hosts say that tensors travel?
    """

    def __init__(self, limits: Limits, known: Known, tensors: bool) -> None:
        self._limits, self._known = limits, known
        self._rows = RowsDecoder(limits, known, tensors)

    def message(self, wire: pb.Envelope) -> tuple[Message, list[tuple[Blob, pb.Tensor]]]:
        """The message, and the tensors that came with its blobs, still packed."""
        carried: list[tuple[Blob, pb.Tensor]] = []
        match wire.WhichOneof("message"):
            case "request":
                return self._request(wire, wire.request, carried), carried
            case "reply":
                return self._reply(wire.reply), carried
            case "miss":
                return self._miss(wire.miss), carried
            case "release":
                return Release(checks.name("release.session", wire.release.session)), carried
            case "backlog":
                return self._backlog(wire), carried
        raise invalid("envelope.message: there is none.")

    def _request(self, envelope: pb.Envelope, wire: pb.Request, carried: list[tuple[Blob, pb.Tensor]]) -> Request:
        route = self._route(wire.route)
        hop = checks.within("request.hop", wire.hop, 0, len(route) - 1)
        path = _names("request.path", wire.path, hop + 1, len(route))
        if path[hop] != envelope.to:
            raise invalid(f"request.path: hop {hop} is {path[hop]!r}, but the message is for {envelope.to!r}")
        return Request(
            _round("request.round", wire.round),
            self._rows.rows(envelope.sender, wire.rows, route[hop], carried),
            route,
            hop,
            path,
            checks.name("request.reply_to", wire.reply_to),
            checks.within("request.budget", wire.budget, 1, self._limits.max_tokens),
            self._slack_s(wire),
            checks.finite("request.value", wire.value, 0, self._limits.max_tokens + 1),
            _names("request.probes", wire.probes, 0, checks.MAX_PROBES),
            self._ends(wire.ends),
            checks.finite("request.rate", wire.rate, 0, _FASTEST),
            checks.finite("request.spent_s", wire.spent_s, 0, _LONGEST_S),
            checks.finite("request.sent_s", wire.sent_s, -INF) if wire.HasField("sent_s") else None,
            _condition("request.condition", wire.condition) if wire.HasField("condition") else None,
        )

    def _slack_s(self, wire: pb.Request) -> float:
        known = wire.HasField("slack_s")
        return checks.finite("request.slack_s", wire.slack_s, -_LONGEST_S, _LONGEST_S) if known else INF

    def _route(self, wire: Sequence[pb.Hop]) -> tuple[Hop, ...]:
        checks.length("request.route", wire, 1, checks.MAX_HOPS)
        route = tuple(_hop(hop) for hop in wire)
        if self._known.route is not None and route != self._known.route:
            raise invalid("request.route: it is not the route of this run's policy.")
        return route

    def _ends(self, wire: Sequence[int]) -> tuple[int, ...]:
        checks.length("request.ends", wire, 0, checks.MAX_ENDS)
        return self._rows.tokens("request.ends", wire)

    def _reply(self, wire: pb.Reply) -> Reply:
        most = self._limits.max_tokens
        return Reply(
            checks.name("reply.session", wire.session),
            _round("reply.round", wire.round),
            checks.within("reply.at", wire.at, 0, most),
            self._verdict(wire.verdict),
            _names("reply.path", wire.path, 0, checks.MAX_HOPS),
            checks.within("reply.left", wire.left, 0, most),
            checks.finite("reply.spent_s", wire.spent_s, 0, _LONGEST_S),
            _condition("reply.condition", wire.condition) if wire.HasField("condition") else None,
        )

    def _verdict(self, wire: pb.Verdict) -> Verdict:
        most = self._limits.max_tokens
        keep = self._rows.keep("reply.verdict.keep", wire.keep) if wire.HasField("keep") else None
        proposal = None
        if wire.HasField("proposal"):
            tokens = self._rows.some_tokens("reply.verdict.proposal.tokens", wire.proposal.tokens)
            parents = self._rows.parents("reply.verdict.proposal.parents", wire.proposal.parents)
            checks.within("reply.verdict.proposal: number of parents", len(parents), len(tokens), len(tokens))
            proposal = tokens, parents
        accepted = checks.within("reply.verdict.accepted", wire.accepted, 0, most)
        (token,) = self._rows.tokens("reply.verdict.token", (wire.token,))
        return Verdict(accepted, token, keep, proposal)

    def _miss(self, wire: pb.Miss) -> Miss:
        session = checks.name("miss.session", wire.session)
        return Miss(session, _round("miss.round", wire.round), checks.name("miss.node", wire.node))

    def _backlog(self, envelope: pb.Envelope) -> Backlog:
        wire = envelope.backlog
        if wire.node != envelope.sender:
            raise invalid("backlog.node: a node speaks of its own backlog only.")
        return Backlog(
            wire.node,
            checks.finite("backlog.queued_s", wire.queued_s, 0),
            checks.finite("backlog.row_s", wire.row_s, 0),
            checks.finite("backlog.step_s", wire.step_s, 0),
            checks.finite("backlog.free", wire.free, -INF) if wire.HasField("free") else INF,
        )


def _condition(field: str, wire: pb.Condition) -> Condition:
    return Condition(
        checks.finite(f"{field}.tokens", wire.tokens, 0),
        checks.finite(f"{field}.base_s", wire.base_s, 0, _LONGEST_S),
        checks.finite(f"{field}.row_s", wire.row_s, 0, _LONGEST_S),
        checks.within(f"{field}.nodes", wire.nodes, 1, checks.MAX_HOPS),
        checks.finite(f"{field}.uplink_mbps", wire.uplink_mbps, 0),
    )


def _hop(wire: pb.Hop) -> Hop:
    last = checks.within("request.route.span.last", wire.span.last, 0, checks.MAX_LAYERS)
    first = checks.within("request.route.span.first", wire.span.first, 0, last)
    out = checks.one_of("request.route.out", wire.out, ("last", "all"))
    return Hop(checks.name("request.route.node", wire.node), Span(first, last, wire.span.embed, wire.span.head), out)


def _round(field: str, value: int) -> int:
    return checks.within(field, value, 0, checks.MAX_TOKEN)


def _names(field: str, wire: Sequence[str], low: int, high: int) -> tuple[str, ...]:
    checks.length(field, wire, low, high)
    return tuple(checks.name(field, value) for value in wire)
