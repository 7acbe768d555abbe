"""A message off the wire, once everything in it has been checked.

Rows off the wire: the part of a request that an engine computes on, so that nothing in it may surprise one.
"""

from collections.abc import Sequence
from typing import cast, get_args

from serving.hardware.payload_size import HIDDEN_DTYPES, SCALE_NBYTES
from serving.messages import (
    INF,
    AcceptanceRule,
    CacheMiss,
    Hop,
    LoadReport,
    Message,
    PathStats,
    Release,
    Reply,
    Request,
    SamplingParams,
    SequenceSlice,
    Span,
    TensorRef,
    Verdict,
)
from serving.transport import errors, tensors
from serving.transport import tandem_pb2 as pb
from serving.transport.errors import invalid
from serving.transport.limits import Limits
from serving.transport.session_ownership import PeerExpectations

MAX_TEMPERATURE = 100.0
MAX_TENSOR_NBYTES = 1 << 40


class SequenceSliceDecoder:
    """Every method raises RefusedError (INVALID_ARGUMENT) naming the field."""

    def __init__(self, limits: Limits, expectations: PeerExpectations, with_tensors: bool) -> None:
        self._limits, self._expectations, self._with_tensors = limits, expectations, with_tensors

    def decode(self, sender: str, wire: pb.Rows, hop: Hop, packed: list[tuple[TensorRef, pb.Tensor]]) -> SequenceSlice:
        """Adds the tensors that came along, packed, to `packed`; their blobs are renamed `@sender/...`, so that no
        host can name another's.
        """
        most = self._limits.max_tokens
        start = errors.within("rows.start", wire.start, 0, most)
        n = errors.within("rows.n", wire.n, 1, most - start)
        rule = cast(AcceptanceRule, errors.one_of("rows.rule", wire.rule, get_args(AcceptanceRule)))
        check = errors.within("rows.check", wire.check, 0, n - 1 if rule else 0)
        blob = self._hidden(sender, wire, n, hop, packed)
        odds = self._draft_probs(sender, wire, check, packed)
        sampling = _sampling(wire.sampling) if wire.HasField("sampling") else None
        if rule == "sample" and sampling is None:
            raise invalid("rows.sampling: the rule 'sample' needs to know how tokens are drawn.")
        return SequenceSlice(
            errors.name("rows.session", wire.session), start, n, self._token_ids(wire.tokens, n, check, hop, blob), check,
            rule, sampling, self._draft_parents(wire, check),
            self.kept_tree_nodes("rows.keep", wire.keep) if wire.HasField("keep") else None, blob, odds,
        )  # fmt: skip

    def _token_ids(
        self, wire: Sequence[int], num_tokens: int, num_drafts: int, hop: Hop, ref: TensorRef | None
    ) -> tuple[int, ...]:
        allowed = (num_tokens,) if hop.span.embedding or ref is None else (0, num_drafts)
        if len(wire) not in allowed:
            raise invalid(f"rows.tokens: {len(wire)} for n={num_tokens} rows of which check={num_drafts} are drafts")
        return self.tokens("rows.tokens", wire)

    def _draft_parents(self, wire: pb.Rows, num_drafts: int) -> tuple[int, ...] | None:
        if not wire.HasField("parents"):
            return None
        parents = self.parents("rows.parents", wire.parents.values)
        if num_drafts and len(parents) != num_drafts:
            raise invalid(f"rows.parents: {len(parents)} for check={num_drafts} drafts")
        return parents

    def parents(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        """Of a tree: a parent comes before its children, -1 is the last committed row."""
        errors.length(field, wire, 0, self._limits.max_tokens)
        parents = tuple(wire)
        for i, parent in enumerate(parents):
            errors.within(field, parent, -1, i - 1)
        return parents

    def kept_tree_nodes(self, field: str, wire: pb.Indices) -> tuple[int, ...]:
        errors.length(field, wire.values, 0, self._limits.max_tokens)
        keep = errors.integers(field, wire.values, 0, self._limits.max_tokens)
        if len(set(keep)) < len(keep):
            raise invalid(f"{field}: a draft is named twice.")
        return keep

    def bounded_tokens(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        errors.length(field, wire, 0, self._limits.max_tokens)
        return self.tokens(field, wire)

    def tokens(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        most = errors.MAX_INT32 if self._expectations.vocab_size is None else self._expectations.vocab_size - 1
        return errors.integers(field, wire, 0, most)

    # Tensors.

    def _hidden(
        self, sender: str, wire: pb.Rows, num_tokens: int, hop: Hop, packed: list[tuple[TensorRef, pb.Tensor]]
    ) -> TensorRef | None:
        if not wire.HasField("blob"):
            if not hop.span.embedding:
                raise invalid("rows.blob: a hop that does not embed needs hidden states.")
            return None
        blob = self._tensor_ref("rows.blob", sender, wire.blob, packed)
        if self._with_tensors:
            name, shape = tensors.check("rows.blob.tensor", wire.blob.tensor)
            errors.one_of("rows.blob: type", name, HIDDEN_DTYPES)
            least = num_tokens if hop.span.start_layer < hop.span.end_layer else 1
            errors.within("rows.blob: dimensions", len(shape), 2, 2)
            errors.within("rows.blob: rows", shape[0], least, num_tokens)
            if name == "int8":
                tensors.check_int8_hidden("rows.blob", wire.blob.tensor)
            if self._expectations.hidden_size is not None:
                width = self._expectations.hidden_size + (SCALE_NBYTES if name == "int8" else 0)
                errors.within("rows.blob: width", shape[1], width, width)
        return blob

    def _draft_probs(
        self, sender: str, wire: pb.Rows, num_drafts: int, packed: list[tuple[TensorRef, pb.Tensor]]
    ) -> tuple[TensorRef, ...]:
        if len(wire.odds) not in (0, num_drafts):
            raise invalid(f"rows.odds: {len(wire.odds)} distributions for check={num_drafts} drafts")
        blobs = tuple(self._tensor_ref("rows.odds", sender, blob, packed) for blob in wire.odds)
        for blob in wire.odds if self._with_tensors else ():
            self._check_distribution(blob.tensor)
        return blobs

    def _check_distribution(self, wire: pb.Tensor) -> None:
        """One that names tokens, or a probability for each of the vocabulary, whose values `ReceivedTensors` checks."""
        if wire.dtype == "int8":
            tensors.check_sparse_probs("rows.odds", wire, self._expectations.vocab_size)
            return
        name, shape = tensors.check("rows.odds.tensor", wire)
        errors.one_of("rows.odds: type", name, ("fp16", "bf16", "fp32", "int8"))
        errors.within("rows.odds: dimensions", len(shape), 1, 1)
        if self._expectations.vocab_size is not None:
            errors.within("rows.odds: tokens", shape[0], 1, self._expectations.vocab_size)

    def _tensor_ref(
        self, field: str, sender: str, wire: pb.Blob, packed: list[tuple[TensorRef, pb.Tensor]]
    ) -> TensorRef:
        name = errors.tensor_id(field, f"@{sender}/{wire.id}")
        blob = TensorRef(name, errors.within(f"{field}.nbytes", wire.nbytes, 0, MAX_TENSOR_NBYTES))
        if wire.HasField("tensor") != self._with_tensors:
            raise invalid(f"{field}.tensor: it must {'' if self._with_tensors else 'not '}travel, both hosts said so.")
        if self._with_tensors:
            packed.append((blob, wire.tensor))
        return blob


def _sampling(wire: pb.Sampling) -> SamplingParams:
    temperature = errors.finite("rows.sampling.temperature", wire.temperature, 0, MAX_TEMPERATURE)
    top_p = errors.finite("rows.sampling.top_p", wire.top_p, 0, 1)
    if not (temperature and top_p):
        raise invalid("rows.sampling: temperature and top_p must be above 0; without sampling, decoding is greedy.")
    top_k = errors.within("rows.sampling.top_k", wire.top_k, 0, errors.MAX_INT32)
    return SamplingParams(temperature, top_k, top_p, wire.seed)


_MAX_DURATION_S = 1e9
_MAX_TOKENS_PER_S = 1e6
"""Tokens a second that may be promised at most."""


class MessageDecoder:
    """Reads what one remote host says. Every method raises RefusedError (INVALID_ARGUMENT) naming the field.

    Args:
        tensors: did both hosts say that tensors travel?
    """

    def __init__(self, limits: Limits, expectations: PeerExpectations, with_tensors: bool) -> None:
        self._limits, self._expectations = limits, expectations
        self._slices = SequenceSliceDecoder(limits, expectations, with_tensors)

    def message(self, wire: pb.Envelope) -> tuple[Message, list[tuple[TensorRef, pb.Tensor]]]:
        """The message, and the tensors that came with its blobs, still packed."""
        carried: list[tuple[TensorRef, pb.Tensor]] = []
        match wire.WhichOneof("message"):
            case "request":
                return self._request(wire, wire.request, carried), carried
            case "reply":
                return self._reply(wire.reply), carried
            case "miss":
                return self._cache_miss(wire.miss), carried
            case "release":
                return Release(errors.name("release.session", wire.release.session)), carried
            case "backlog":
                return self._load_report(wire), carried
        raise invalid("envelope.message: there is none.")

    def _request(self, envelope: pb.Envelope, wire: pb.Request, packed: list[tuple[TensorRef, pb.Tensor]]) -> Request:
        route = self._hops(wire.route)
        hop = errors.within("request.hop", wire.hop, 0, len(route) - 1)
        path = _names("request.path", wire.path, hop + 1, len(route))
        if path[hop] != envelope.to:
            raise invalid(f"request.path: hop {hop} is {path[hop]!r}, but the message is for {envelope.to!r}")
        return Request(
            _attempt("request.round", wire.round),
            self._slices.decode(envelope.sender, wire.rows, route[hop], packed),
            route,
            hop,
            path,
            errors.name("request.reply_to", wire.reply_to),
            errors.within("request.budget", wire.budget, 1, self._limits.max_tokens),
            self._slack_s(wire),
            errors.finite("request.value", wire.value, 0, self._limits.max_tokens + 1),
            _names("request.probes", wire.probes, 0, errors.MAX_SCORES),
            self._stop_tokens(wire.ends),
            errors.finite("request.rate", wire.rate, 0, _MAX_TOKENS_PER_S),
            errors.finite("request.spent_s", wire.spent_s, 0, _MAX_DURATION_S),
            errors.finite("request.sent_s", wire.sent_s, -INF) if wire.HasField("sent_s") else None,
            _path_stats("request.condition", wire.condition) if wire.HasField("condition") else None,
        )

    def _slack_s(self, wire: pb.Request) -> float:
        known = wire.HasField("slack_s")
        return errors.finite("request.slack_s", wire.slack_s, -_MAX_DURATION_S, _MAX_DURATION_S) if known else INF

    def _hops(self, wire: Sequence[pb.Hop]) -> tuple[Hop, ...]:
        errors.length("request.route", wire, 1, errors.MAX_HOPS)
        route = tuple(_hop(hop) for hop in wire)
        if self._expectations.hops is not None and route != self._expectations.hops:
            raise invalid("request.route: it is not the route of this run's policy.")
        return route

    def _stop_tokens(self, wire: Sequence[int]) -> tuple[int, ...]:
        errors.length("request.ends", wire, 0, errors.MAX_STOP_TOKENS)
        return self._slices.tokens("request.ends", wire)

    def _reply(self, wire: pb.Reply) -> Reply:
        most = self._limits.max_tokens
        return Reply(
            errors.name("reply.session", wire.session),
            _attempt("reply.round", wire.round),
            errors.within("reply.at", wire.at, 0, most),
            self._verdict(wire.verdict),
            _names("reply.path", wire.path, 0, errors.MAX_HOPS),
            errors.within("reply.left", wire.left, 0, most),
            errors.finite("reply.spent_s", wire.spent_s, 0, _MAX_DURATION_S),
            _path_stats("reply.condition", wire.condition) if wire.HasField("condition") else None,
        )

    def _verdict(self, wire: pb.Verdict) -> Verdict:
        most = self._limits.max_tokens
        keep = self._slices.kept_tree_nodes("reply.verdict.keep", wire.keep) if wire.HasField("keep") else None
        proposal = None
        if wire.HasField("proposal"):
            tokens = self._slices.bounded_tokens("reply.verdict.proposal.tokens", wire.proposal.tokens)
            parents = self._slices.parents("reply.verdict.proposal.parents", wire.proposal.parents)
            errors.within("reply.verdict.proposal: number of parents", len(parents), len(tokens), len(tokens))
            proposal = tokens, parents
        accepted = errors.within("reply.verdict.accepted", wire.accepted, 0, most)
        (token,) = self._slices.tokens("reply.verdict.token", (wire.token,))
        return Verdict(accepted, token, keep, proposal)

    def _cache_miss(self, wire: pb.Miss) -> CacheMiss:
        session = errors.name("miss.session", wire.session)
        return CacheMiss(session, _attempt("miss.round", wire.round), errors.name("miss.node", wire.node))

    def _load_report(self, envelope: pb.Envelope) -> LoadReport:
        wire = envelope.backlog
        if wire.node != envelope.sender:
            raise invalid("backlog.node: a node speaks of its own backlog only.")
        return LoadReport(
            wire.node,
            errors.finite("backlog.queued_s", wire.queued_s, 0),
            errors.finite("backlog.row_s", wire.row_s, 0),
            errors.finite("backlog.step_s", wire.step_s, 0),
            errors.finite("backlog.free", wire.free, -INF) if wire.HasField("free") else INF,
        )


def _path_stats(field: str, wire: pb.Condition) -> PathStats:
    return PathStats(
        errors.finite(f"{field}.tokens", wire.tokens, 0),
        errors.finite(f"{field}.base_s", wire.base_s, 0, _MAX_DURATION_S),
        errors.finite(f"{field}.row_s", wire.row_s, 0, _MAX_DURATION_S),
        errors.within(f"{field}.nodes", wire.nodes, 1, errors.MAX_HOPS),
        errors.finite(f"{field}.uplink_mbps", wire.uplink_mbps, 0),
    )


def _hop(wire: pb.Hop) -> Hop:
    last = errors.within("request.route.span.last", wire.span.last, 0, errors.MAX_LAYERS)
    first = errors.within("request.route.span.first", wire.span.first, 0, last)
    out = errors.one_of("request.route.out", wire.out, ("last", "all"))
    return Hop(errors.name("request.route.node", wire.node), Span(first, last, wire.span.embed, wire.span.head), out)


def _attempt(field: str, value: int) -> int:
    return errors.within(field, value, 0, errors.MAX_INT32)


def _names(field: str, wire: Sequence[str], low: int, high: int) -> tuple[str, ...]:
    errors.length(field, wire, low, high)
    return tuple(errors.name(field, value) for value in wire)
