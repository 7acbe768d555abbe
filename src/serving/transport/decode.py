"""A message off the wire, once everything in it has been checked.

Rows off the wire: the part of a request that an engine computes on, so that nothing in it may surprise one.
"""

from collections.abc import Sequence
from typing import cast, get_args

from serving.hardware.payload_size import NUMBERS, SCALE_NBYTES
from serving.messages import (
    INF,
    Backlog,
    Blob,
    Condition,
    Hop,
    Message,
    Miss,
    Release,
    Reply,
    Request,
    Rows,
    Rule,
    Sampling,
    Span,
    Verdict,
)
from serving.transport import errors, tensors
from serving.transport import tandem_pb2 as pb
from serving.transport.errors import invalid
from serving.transport.limits import Limits
from serving.transport.session_ownership import Known

MAX_TEMPERATURE = 100.0
MAX_BLOB_NBYTES = 1 << 40


class RowsDecoder:
    """Every method raises RefusedError (INVALID_ARGUMENT) naming the field."""

    def __init__(self, limits: Limits, known: Known, carry: bool) -> None:
        self._limits, self._known, self._carry = limits, known, carry

    def rows(self, sender: str, wire: pb.Rows, hop: Hop, carried: list[tuple[Blob, pb.Tensor]]) -> Rows:
        """Adds the tensors that came along, packed, to `carried`; their blobs are renamed `@sender/...`, so that no
        host can name another's.
        """
        most = self._limits.max_tokens
        start = errors.within("rows.start", wire.start, 0, most)
        n = errors.within("rows.n", wire.n, 1, most - start)
        rule = cast(Rule, errors.one_of("rows.rule", wire.rule, get_args(Rule)))
        check = errors.within("rows.check", wire.check, 0, n - 1 if rule else 0)
        blob = self._hidden(sender, wire, n, hop, carried)
        odds = self._odds(sender, wire, check, carried)
        sampling = _sampling(wire.sampling) if wire.HasField("sampling") else None
        if rule == "sample" and sampling is None:
            raise invalid("rows.sampling: the rule 'sample' needs to know how tokens are drawn.")
        return Rows(
            errors.name("rows.session", wire.session), start, n, self._ids(wire.tokens, n, check, hop, blob), check,
            rule, sampling, self._parents(wire, check),
            self.keep("rows.keep", wire.keep) if wire.HasField("keep") else None, blob, odds,
        )  # fmt: skip

    def _ids(self, wire: Sequence[int], n: int, check: int, hop: Hop, blob: Blob | None) -> tuple[int, ...]:
        allowed = (n,) if hop.span.embed or blob is None else (0, check)
        if len(wire) not in allowed:
            raise invalid(f"rows.tokens: {len(wire)} for n={n} rows of which check={check} are drafts")
        return self.tokens("rows.tokens", wire)

    def _parents(self, wire: pb.Rows, check: int) -> tuple[int, ...] | None:
        if not wire.HasField("parents"):
            return None
        parents = self.parents("rows.parents", wire.parents.values)
        if check and len(parents) != check:
            raise invalid(f"rows.parents: {len(parents)} for check={check} drafts")
        return parents

    def parents(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        """Of a tree: a parent comes before its children, -1 is the last committed row."""
        errors.length(field, wire, 0, self._limits.max_tokens)
        parents = tuple(wire)
        for i, parent in enumerate(parents):
            errors.within(field, parent, -1, i - 1)
        return parents

    def keep(self, field: str, wire: pb.Indices) -> tuple[int, ...]:
        errors.length(field, wire.values, 0, self._limits.max_tokens)
        keep = errors.integers(field, wire.values, 0, self._limits.max_tokens)
        if len(set(keep)) < len(keep):
            raise invalid(f"{field}: a draft is named twice.")
        return keep

    def some_tokens(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        errors.length(field, wire, 0, self._limits.max_tokens)
        return self.tokens(field, wire)

    def tokens(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        most = errors.MAX_TOKEN if self._known.vocabulary is None else self._known.vocabulary - 1
        return errors.integers(field, wire, 0, most)

    # Tensors.

    def _hidden(
        self, sender: str, wire: pb.Rows, n: int, hop: Hop, carried: list[tuple[Blob, pb.Tensor]]
    ) -> Blob | None:
        if not wire.HasField("blob"):
            if not hop.span.embed:
                raise invalid("rows.blob: a hop that does not embed needs hidden states.")
            return None
        blob = self._blob("rows.blob", sender, wire.blob, carried)
        if self._carry:
            name, shape = tensors.check("rows.blob.tensor", wire.blob.tensor)
            errors.one_of("rows.blob: type", name, NUMBERS)
            least = n if hop.span.first < hop.span.last else 1
            errors.within("rows.blob: dimensions", len(shape), 2, 2)
            errors.within("rows.blob: rows", shape[0], least, n)
            if name == "int8":
                tensors.check_scaled("rows.blob", wire.blob.tensor)
            if self._known.hidden is not None:
                width = self._known.hidden + (SCALE_NBYTES if name == "int8" else 0)
                errors.within("rows.blob: width", shape[1], width, width)
        return blob

    def _odds(self, sender: str, wire: pb.Rows, check: int, carried: list[tuple[Blob, pb.Tensor]]) -> tuple[Blob, ...]:
        if len(wire.odds) not in (0, check):
            raise invalid(f"rows.odds: {len(wire.odds)} distributions for check={check} drafts")
        blobs = tuple(self._blob("rows.odds", sender, blob, carried) for blob in wire.odds)
        for blob in wire.odds if self._carry else ():
            self._distribution(blob.tensor)
        return blobs

    def _distribution(self, wire: pb.Tensor) -> None:
        """One that names tokens, or a probability for each of the vocabulary, whose values `Luggage` checks."""
        if wire.dtype == "int8":
            tensors.check_named("rows.odds", wire, self._known.vocabulary)
            return
        name, shape = tensors.check("rows.odds.tensor", wire)
        errors.one_of("rows.odds: type", name, ("fp16", "bf16", "fp32", "int8"))
        errors.within("rows.odds: dimensions", len(shape), 1, 1)
        if self._known.vocabulary is not None:
            errors.within("rows.odds: tokens", shape[0], 1, self._known.vocabulary)

    def _blob(self, field: str, sender: str, wire: pb.Blob, carried: list[tuple[Blob, pb.Tensor]]) -> Blob:
        name = errors.blob_id(field, f"@{sender}/{wire.id}")
        blob = Blob(name, errors.within(f"{field}.nbytes", wire.nbytes, 0, MAX_BLOB_NBYTES))
        if wire.HasField("tensor") != self._carry:
            raise invalid(f"{field}.tensor: it must {'' if self._carry else 'not '}travel, both hosts said so.")
        if self._carry:
            carried.append((blob, wire.tensor))
        return blob


def _sampling(wire: pb.Sampling) -> Sampling:
    temperature = errors.finite("rows.sampling.temperature", wire.temperature, 0, MAX_TEMPERATURE)
    top_p = errors.finite("rows.sampling.top_p", wire.top_p, 0, 1)
    if not (temperature and top_p):
        raise invalid("rows.sampling: temperature and top_p must be above 0; without sampling, decoding is greedy.")
    top_k = errors.within("rows.sampling.top_k", wire.top_k, 0, errors.MAX_TOKEN)
    return Sampling(temperature, top_k, top_p, wire.seed)


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
                return Release(errors.name("release.session", wire.release.session)), carried
            case "backlog":
                return self._backlog(wire), carried
        raise invalid("envelope.message: there is none.")

    def _request(self, envelope: pb.Envelope, wire: pb.Request, carried: list[tuple[Blob, pb.Tensor]]) -> Request:
        route = self._route(wire.route)
        hop = errors.within("request.hop", wire.hop, 0, len(route) - 1)
        path = _names("request.path", wire.path, hop + 1, len(route))
        if path[hop] != envelope.to:
            raise invalid(f"request.path: hop {hop} is {path[hop]!r}, but the message is for {envelope.to!r}")
        return Request(
            _round("request.round", wire.round),
            self._rows.rows(envelope.sender, wire.rows, route[hop], carried),
            route,
            hop,
            path,
            errors.name("request.reply_to", wire.reply_to),
            errors.within("request.budget", wire.budget, 1, self._limits.max_tokens),
            self._slack_s(wire),
            errors.finite("request.value", wire.value, 0, self._limits.max_tokens + 1),
            _names("request.probes", wire.probes, 0, errors.MAX_PROBES),
            self._ends(wire.ends),
            errors.finite("request.rate", wire.rate, 0, _FASTEST),
            errors.finite("request.spent_s", wire.spent_s, 0, _LONGEST_S),
            errors.finite("request.sent_s", wire.sent_s, -INF) if wire.HasField("sent_s") else None,
            _condition("request.condition", wire.condition) if wire.HasField("condition") else None,
        )

    def _slack_s(self, wire: pb.Request) -> float:
        known = wire.HasField("slack_s")
        return errors.finite("request.slack_s", wire.slack_s, -_LONGEST_S, _LONGEST_S) if known else INF

    def _route(self, wire: Sequence[pb.Hop]) -> tuple[Hop, ...]:
        errors.length("request.route", wire, 1, errors.MAX_HOPS)
        route = tuple(_hop(hop) for hop in wire)
        if self._known.route is not None and route != self._known.route:
            raise invalid("request.route: it is not the route of this run's policy.")
        return route

    def _ends(self, wire: Sequence[int]) -> tuple[int, ...]:
        errors.length("request.ends", wire, 0, errors.MAX_ENDS)
        return self._rows.tokens("request.ends", wire)

    def _reply(self, wire: pb.Reply) -> Reply:
        most = self._limits.max_tokens
        return Reply(
            errors.name("reply.session", wire.session),
            _round("reply.round", wire.round),
            errors.within("reply.at", wire.at, 0, most),
            self._verdict(wire.verdict),
            _names("reply.path", wire.path, 0, errors.MAX_HOPS),
            errors.within("reply.left", wire.left, 0, most),
            errors.finite("reply.spent_s", wire.spent_s, 0, _LONGEST_S),
            _condition("reply.condition", wire.condition) if wire.HasField("condition") else None,
        )

    def _verdict(self, wire: pb.Verdict) -> Verdict:
        most = self._limits.max_tokens
        keep = self._rows.keep("reply.verdict.keep", wire.keep) if wire.HasField("keep") else None
        proposal = None
        if wire.HasField("proposal"):
            tokens = self._rows.some_tokens("reply.verdict.proposal.tokens", wire.proposal.tokens)
            parents = self._rows.parents("reply.verdict.proposal.parents", wire.proposal.parents)
            errors.within("reply.verdict.proposal: number of parents", len(parents), len(tokens), len(tokens))
            proposal = tokens, parents
        accepted = errors.within("reply.verdict.accepted", wire.accepted, 0, most)
        (token,) = self._rows.tokens("reply.verdict.token", (wire.token,))
        return Verdict(accepted, token, keep, proposal)

    def _miss(self, wire: pb.Miss) -> Miss:
        session = errors.name("miss.session", wire.session)
        return Miss(session, _round("miss.round", wire.round), errors.name("miss.node", wire.node))

    def _backlog(self, envelope: pb.Envelope) -> Backlog:
        wire = envelope.backlog
        if wire.node != envelope.sender:
            raise invalid("backlog.node: a node speaks of its own backlog only.")
        return Backlog(
            wire.node,
            errors.finite("backlog.queued_s", wire.queued_s, 0),
            errors.finite("backlog.row_s", wire.row_s, 0),
            errors.finite("backlog.step_s", wire.step_s, 0),
            errors.finite("backlog.free", wire.free, -INF) if wire.HasField("free") else INF,
        )


def _condition(field: str, wire: pb.Condition) -> Condition:
    return Condition(
        errors.finite(f"{field}.tokens", wire.tokens, 0),
        errors.finite(f"{field}.base_s", wire.base_s, 0, _LONGEST_S),
        errors.finite(f"{field}.row_s", wire.row_s, 0, _LONGEST_S),
        errors.within(f"{field}.nodes", wire.nodes, 1, errors.MAX_HOPS),
        errors.finite(f"{field}.uplink_mbps", wire.uplink_mbps, 0),
    )


def _hop(wire: pb.Hop) -> Hop:
    last = errors.within("request.route.span.last", wire.span.last, 0, errors.MAX_LAYERS)
    first = errors.within("request.route.span.first", wire.span.first, 0, last)
    out = errors.one_of("request.route.out", wire.out, ("last", "all"))
    return Hop(errors.name("request.route.node", wire.node), Span(first, last, wire.span.embed, wire.span.head), out)


def _round(field: str, value: int) -> int:
    return errors.within(field, value, 0, errors.MAX_TOKEN)


def _names(field: str, wire: Sequence[str], low: int, high: int) -> tuple[str, ...]:
    errors.length(field, wire, low, high)
    return tuple(errors.name(field, value) for value in wire)
