"""Checks protobuf messages from another host and decodes them to `serving.messages`."""

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
_MAX_DURATION_S = 1e9
_MAX_TOKENS_PER_S = 1e6


class MessageDecoder:
    """Decodes the messages of one remote host. Every method raises ProtocolError (INVALID_ARGUMENT) naming the field.

    Args:
        with_tensors: True if both hosts said in their Hello that tensors travel.
    """

    def __init__(self, limits: Limits, expectations: PeerExpectations, with_tensors: bool) -> None:
        self._limits, self._expectations = limits, expectations
        self._slices = SequenceSliceDecoder(limits, expectations, with_tensors)

    def message(self, wire: pb.Envelope) -> tuple[Message, list[tuple[TensorRef, pb.Tensor]]]:
        """Returns the message and the tensors that came with it, still packed."""
        packed: list[tuple[TensorRef, pb.Tensor]] = []
        match wire.WhichOneof("message"):
            case "request":
                return self._request(wire, wire.request, packed), packed
            case "reply":
                return self._reply(wire.reply), packed
            case "cache_miss":
                return self._cache_miss(wire.cache_miss), packed
            case "release":
                return Release(errors.name("release.session", wire.release.session)), packed
            case "load_report":
                return self._load_report(wire), packed
        raise invalid("envelope.message is missing.")

    def _request(self, envelope: pb.Envelope, wire: pb.Request, packed: list[tuple[TensorRef, pb.Tensor]]) -> Request:
        hops = self._hops(wire.hops)
        index = errors.within("request.hop_index", wire.hop_index, 0, len(hops) - 1)
        path = _names("request.path", wire.path, index + 1, len(hops))
        if path[index] != envelope.to:
            raise invalid(f"request.path: hop {index} is {path[index]!r}, but the message is for {envelope.to!r}")
        return Request(
            _attempt("request.attempt", wire.attempt),
            self._slices.decode(envelope.sender, wire.slice, hops[index], packed),
            hops,
            index,
            path,
            errors.name("request.reply_to", wire.reply_to),
            errors.within("request.budget", wire.budget, 1, self._limits.max_tokens),
            self._slack_s(wire),
            errors.finite("request.expected_tokens", wire.expected_tokens, 0, self._limits.max_tokens + 1),
            _names("request.requested_outputs", wire.requested_outputs, 0, errors.MAX_SCORES),
            self._stop_tokens(wire.stop_tokens),
            errors.finite("request.slo_tokens_per_s", wire.slo_tokens_per_s, 0, _MAX_TOKENS_PER_S),
            errors.finite("request.upstream_s", wire.upstream_s, 0, _MAX_DURATION_S),
            errors.finite("request.sent_s", wire.sent_s, -INF) if wire.HasField("sent_s") else None,
            _path_stats("request.path_stats", wire.path_stats) if wire.HasField("path_stats") else None,
        )

    def _slack_s(self, wire: pb.Request) -> float:
        if not wire.HasField("slack_s"):
            return INF
        return errors.finite("request.slack_s", wire.slack_s, -_MAX_DURATION_S, _MAX_DURATION_S)

    def _hops(self, wire: Sequence[pb.Hop]) -> tuple[Hop, ...]:
        errors.length("request.hops", wire, 1, errors.MAX_HOPS)
        hops = tuple(_hop(hop) for hop in wire)
        if self._expectations.hops is not None and hops != self._expectations.hops:
            raise invalid("request.hops: they are not the hops of this run's policy.")
        return hops

    def _stop_tokens(self, wire: Sequence[int]) -> tuple[int, ...]:
        errors.length("request.stop_tokens", wire, 0, errors.MAX_STOP_TOKENS)
        return self._slices.tokens("request.stop_tokens", wire)

    def _reply(self, wire: pb.Reply) -> Reply:
        most = self._limits.max_tokens
        return Reply(
            errors.name("reply.session", wire.session),
            _attempt("reply.attempt", wire.attempt),
            errors.within("reply.committed_len", wire.committed_len, 0, most),
            self._verdict(wire.verdict),
            _names("reply.path", wire.path, 0, errors.MAX_HOPS),
            errors.within("reply.remaining_budget", wire.remaining_budget, 0, most),
            errors.finite("reply.path_latency_s", wire.path_latency_s, 0, _MAX_DURATION_S),
            _path_stats("reply.path_stats", wire.path_stats) if wire.HasField("path_stats") else None,
        )

    def _verdict(self, wire: pb.Verdict) -> Verdict:
        kept = next_tree = None
        if wire.HasField("kept_tree_nodes"):
            kept = self._slices.kept_tree_nodes("reply.verdict.kept_tree_nodes", wire.kept_tree_nodes)
        if wire.HasField("next_tree"):
            tokens = self._slices.bounded_tokens("reply.verdict.next_tree.tokens", wire.next_tree.tokens)
            parents = self._slices.parents("reply.verdict.next_tree.parents", wire.next_tree.parents)
            errors.within("reply.verdict.next_tree: number of parents", len(parents), len(tokens), len(tokens))
            next_tree = tokens, parents
        accepted = errors.within("reply.verdict.accepted", wire.accepted, 0, self._limits.max_tokens)
        (token,) = self._slices.tokens("reply.verdict.next_token", (wire.next_token,))
        return Verdict(accepted, token, kept, next_tree)

    def _cache_miss(self, wire: pb.CacheMiss) -> CacheMiss:
        session = errors.name("cache_miss.session", wire.session)
        attempt = _attempt("cache_miss.attempt", wire.attempt)
        return CacheMiss(session, attempt, errors.name("cache_miss.node", wire.node))

    def _load_report(self, envelope: pb.Envelope) -> LoadReport:
        wire = envelope.load_report
        if wire.node != envelope.sender:
            raise invalid("load_report.node: a node may only report its own load.")
        return LoadReport(
            wire.node,
            errors.finite("load_report.queued_s", wire.queued_s, 0),
            errors.finite("load_report.per_token_s", wire.per_token_s, 0),
            errors.finite("load_report.pass_s", wire.pass_s, 0),
            errors.finite("load_report.free_tokens", wire.free_tokens, -INF) if wire.HasField("free_tokens") else INF,
        )


class SequenceSliceDecoder:
    """Decodes the part of a request that an engine computes on. Every method raises as `MessageDecoder`."""

    def __init__(self, limits: Limits, expectations: PeerExpectations, with_tensors: bool) -> None:
        self._limits, self._expectations, self._with_tensors = limits, expectations, with_tensors

    def decode(
        self, sender: str, wire: pb.SequenceSlice, hop: Hop, packed: list[tuple[TensorRef, pb.Tensor]]
    ) -> SequenceSlice:
        """Appends the slice's tensors to `packed`. Tensors get ids `@sender/...`, so that no host can name another
        host's tensor.
        """
        most = self._limits.max_tokens
        start = errors.within("slice.start", wire.start, 0, most)
        num_tokens = errors.within("slice.num_tokens", wire.num_tokens, 1, most - start)
        rule = cast(AcceptanceRule, errors.one_of("slice.rule", wire.rule, get_args(AcceptanceRule)))
        num_drafts = errors.within("slice.num_drafts", wire.num_drafts, 0, num_tokens - 1 if rule else 0)
        hidden = self._hidden(sender, wire, num_tokens, hop, packed)
        draft_probs = self._draft_probs(sender, wire, num_drafts, packed)
        sampling = _sampling(wire.sampling) if wire.HasField("sampling") else None
        if rule == "sample" and sampling is None:
            raise invalid("slice.sampling: the rule 'sample' needs sampling parameters.")
        kept = None
        if wire.HasField("kept_tree_nodes"):
            kept = self.kept_tree_nodes("slice.kept_tree_nodes", wire.kept_tree_nodes)
        return SequenceSlice(
            errors.name("slice.session", wire.session),
            start,
            num_tokens,
            self._token_ids(wire.tokens, num_tokens, num_drafts, hop, hidden),
            num_drafts,
            rule,
            sampling,
            self._draft_parents(wire, num_drafts),
            kept,
            hidden,
            draft_probs,
        )

    def _token_ids(
        self, wire: Sequence[int], num_tokens: int, num_drafts: int, hop: Hop, hidden: TensorRef | None
    ) -> tuple[int, ...]:
        allowed = (num_tokens,) if hop.span.embedding or hidden is None else (0, num_drafts)
        if len(wire) not in allowed:
            raise invalid(f"slice.tokens: {len(wire)} for num_tokens={num_tokens}, num_drafts={num_drafts}")
        return self.tokens("slice.tokens", wire)

    def _draft_parents(self, wire: pb.SequenceSlice, num_drafts: int) -> tuple[int, ...] | None:
        if not wire.HasField("parents"):
            return None
        parents = self.parents("slice.parents", wire.parents.values)
        if num_drafts and len(parents) != num_drafts:
            raise invalid(f"slice.parents: {len(parents)} for num_drafts={num_drafts}")
        return parents

    def parents(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        """Parents of a tree: each comes before its children; -1 is the last committed token."""
        errors.length(field, wire, 0, self._limits.max_tokens)
        parents = tuple(wire)
        for i, parent in enumerate(parents):
            errors.within(field, parent, -1, i - 1)
        return parents

    def kept_tree_nodes(self, field: str, wire: pb.Indices) -> tuple[int, ...]:
        errors.length(field, wire.values, 0, self._limits.max_tokens)
        kept = errors.integers(field, wire.values, 0, self._limits.max_tokens)
        if len(set(kept)) < len(kept):
            raise invalid(f"{field}: a draft is named twice.")
        return kept

    def bounded_tokens(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        errors.length(field, wire, 0, self._limits.max_tokens)
        return self.tokens(field, wire)

    def tokens(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        most = errors.MAX_INT32 if self._expectations.vocab_size is None else self._expectations.vocab_size - 1
        return errors.integers(field, wire, 0, most)

    # Tensors.

    def _hidden(
        self, sender: str, wire: pb.SequenceSlice, num_tokens: int, hop: Hop, packed: list[tuple[TensorRef, pb.Tensor]]
    ) -> TensorRef | None:
        field = "slice.hidden_states"
        if not wire.HasField("hidden_states"):
            if not hop.span.embedding:
                raise invalid(f"{field}: a hop without the embedding needs hidden states.")
            return None
        ref = self._tensor_ref(field, sender, wire.hidden_states, packed)
        if self._with_tensors:
            tensor = wire.hidden_states.tensor
            dtype, shape = tensors.check(f"{field}.tensor", tensor)
            errors.one_of(f"{field}: type", dtype, HIDDEN_DTYPES)
            least = num_tokens if hop.span.start_layer < hop.span.end_layer else 1
            errors.within(f"{field}: dimensions", len(shape), 2, 2)
            errors.within(f"{field}: rows", shape[0], least, num_tokens)
            if dtype == "int8":
                tensors.check_int8_hidden(field, tensor)
            if self._expectations.hidden_size is not None:
                width = self._expectations.hidden_size + (SCALE_NBYTES if dtype == "int8" else 0)
                errors.within(f"{field}: width", shape[1], width, width)
        return ref

    def _draft_probs(
        self, sender: str, wire: pb.SequenceSlice, num_drafts: int, packed: list[tuple[TensorRef, pb.Tensor]]
    ) -> tuple[TensorRef, ...]:
        if len(wire.draft_probs) not in (0, num_drafts):
            raise invalid(f"slice.draft_probs: {len(wire.draft_probs)} distributions for num_drafts={num_drafts}")
        refs = tuple(self._tensor_ref("slice.draft_probs", sender, each, packed) for each in wire.draft_probs)
        for each in wire.draft_probs if self._with_tensors else ():
            self._check_distribution(each.tensor)
        return refs

    def _check_distribution(self, wire: pb.Tensor) -> None:
        """Checks a sparse distribution (int8) in full, a dense one in shape; `ReceivedTensors` checks its values."""
        field = "slice.draft_probs"
        if wire.dtype == "int8":
            tensors.check_sparse_probs(field, wire, self._expectations.vocab_size)
            return
        dtype, shape = tensors.check(f"{field}.tensor", wire)
        errors.one_of(f"{field}: type", dtype, ("fp16", "bf16", "fp32", "int8"))
        errors.within(f"{field}: dimensions", len(shape), 1, 1)
        if self._expectations.vocab_size is not None:
            errors.within(f"{field}: tokens", shape[0], 1, self._expectations.vocab_size)

    def _tensor_ref(
        self, field: str, sender: str, wire: pb.TensorRef, packed: list[tuple[TensorRef, pb.Tensor]]
    ) -> TensorRef:
        tensor_id = errors.tensor_id(field, f"@{sender}/{wire.id}")
        ref = TensorRef(tensor_id, errors.within(f"{field}.nbytes", wire.nbytes, 0, MAX_TENSOR_NBYTES))
        if wire.HasField("tensor") != self._with_tensors:
            raise invalid(
                f"{field}.tensor: it must {'' if self._with_tensors else 'not '}travel, as both hosts' Hello said."
            )
        if self._with_tensors:
            packed.append((ref, wire.tensor))
        return ref


def _sampling(wire: pb.SamplingParams) -> SamplingParams:
    temperature = errors.finite("slice.sampling.temperature", wire.temperature, 0, MAX_TEMPERATURE)
    top_p = errors.finite("slice.sampling.top_p", wire.top_p, 0, 1)
    if not (temperature and top_p):
        raise invalid("slice.sampling: temperature and top_p must be above 0; without sampling, decoding is greedy.")
    top_k = errors.within("slice.sampling.top_k", wire.top_k, 0, errors.MAX_INT32)
    return SamplingParams(temperature, top_k, top_p, wire.seed)


def _path_stats(field: str, wire: pb.PathStats) -> PathStats:
    return PathStats(
        errors.finite(f"{field}.mean_batch_tokens", wire.mean_batch_tokens, 0),
        errors.finite(f"{field}.base_s", wire.base_s, 0, _MAX_DURATION_S),
        errors.finite(f"{field}.per_token_s", wire.per_token_s, 0, _MAX_DURATION_S),
        errors.within(f"{field}.num_nodes", wire.num_nodes, 1, errors.MAX_HOPS),
        errors.finite(f"{field}.uplink_mbps", wire.uplink_mbps, 0),
    )


def _hop(wire: pb.Hop) -> Hop:
    span = wire.span
    end = errors.within("request.hops.span.end_layer", span.end_layer, 0, errors.MAX_LAYERS)
    start = errors.within("request.hops.span.start_layer", span.start_layer, 0, end)
    export = errors.one_of("request.hops.hidden_export", wire.hidden_export, ("last", "all"))
    return Hop(errors.name("request.hops.node", wire.node), Span(start, end, span.embedding, span.lm_head), export)


def _attempt(field: str, value: int) -> int:
    return errors.within(field, value, 0, errors.MAX_INT32)


def _names(field: str, wire: Sequence[str], low: int, high: int) -> tuple[str, ...]:
    errors.length(field, wire, low, high)
    return tuple(errors.name(field, value) for value in wire)
