"""Encodes messages (`serving.messages`) as protobuf frames."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from serving.messages import (
    INF,
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
    TensorRef,
    Verdict,
)
from serving.transport import tandem_pb2 as pb

TensorPacker: TypeAlias = Callable[[TensorRef], pb.Tensor]


def encode_message(sender: str, to: str, message: Message, packers: tuple[TensorPacker, TensorPacker] | None) -> bytes:
    """Returns a frame with one message.

    Args:
        packers: one function for tensors that only this message needs, one for tensors that may be sent again; None:
            tensors do not travel.

    Raises KeyError if a tensor is no longer in the store, ValueError for a number that the schema cannot hold.
    """
    wire = pb.Envelope(sender=sender, to=to)
    match message:
        case Request():
            wire.request.CopyFrom(_request(message, packers))
        case Reply():
            wire.reply.CopyFrom(_reply(message))
        case CacheMiss(session, attempt, node):
            wire.cache_miss.CopyFrom(pb.CacheMiss(session=session, attempt=attempt, node=node))
        case Release(session):
            wire.release.CopyFrom(pb.Release(session=session))
        case LoadReport():
            wire.load_report.CopyFrom(_load_report(message))
    return encode_frame(pb.Frame(envelope=wire))


def encode_frame(wire: pb.Frame) -> bytes:
    data: bytes = wire.SerializeToString()
    return data


def _request(m: Request, packers: tuple[TensorPacker, TensorPacker] | None) -> pb.Request:
    return pb.Request(
        attempt=m.attempt,
        slice=_sequence_slice(m.slice, packers),
        hops=[_hop(hop) for hop in m.hops],
        hop_index=m.hop_index,
        path=m.path,
        reply_to=m.reply_to,
        budget=m.budget,
        slack_s=_finite(m.slack_s),
        expected_tokens=m.expected_tokens,
        requested_outputs=m.requested_outputs,
        stop_tokens=m.stop_tokens,
        slo_tokens_per_s=m.slo_tokens_per_s,
        upstream_s=m.upstream_s,
        sent_s=m.sent_s,
        path_stats=_path_stats(m.path_stats),
    )


def _reply(m: Reply) -> pb.Reply:
    return pb.Reply(
        session=m.session,
        attempt=m.attempt,
        committed_len=m.committed_len,
        verdict=_verdict(m.verdict),
        path=m.path,
        remaining_budget=m.remaining_budget,
        path_latency_s=m.path_latency_s,
        path_stats=_path_stats(m.path_stats),
    )


def _load_report(m: LoadReport) -> pb.LoadReport:
    return pb.LoadReport(
        node=m.node,
        queued_s=m.queued_s,
        per_token_s=m.per_token_s,
        pass_s=m.pass_s,
        free_tokens=_finite(m.free_tokens),
    )


def _path_stats(stats: PathStats | None) -> pb.PathStats | None:
    if stats is None:
        return None
    return pb.PathStats(
        mean_batch_tokens=stats.mean_batch_tokens,
        base_s=stats.base_s,
        per_token_s=stats.per_token_s,
        num_nodes=stats.num_nodes,
        uplink_mbps=stats.uplink_mbps,
    )


def _sequence_slice(seq: SequenceSlice, packers: tuple[TensorPacker, TensorPacker] | None) -> pb.SequenceSlice:
    pack_once, pack_again = packers or (None, None)
    return pb.SequenceSlice(
        session=seq.session,
        start=seq.start,
        num_tokens=seq.num_tokens,
        tokens=seq.tokens,
        num_drafts=seq.num_drafts,
        rule=seq.rule,
        sampling=_sampling(seq.sampling) if seq.sampling else None,
        parents=_indices(seq.parents),
        kept_tree_nodes=_indices(seq.kept_tree_nodes),
        hidden_states=_tensor_ref(seq.hidden_states, pack_once) if seq.hidden_states else None,
        draft_probs=[_tensor_ref(ref, pack_again) for ref in seq.draft_probs],
    )


def _sampling(s: SamplingParams) -> pb.SamplingParams:
    return pb.SamplingParams(temperature=s.temperature, top_k=s.top_k, top_p=s.top_p, seed=s.seed)


def _hop(hop: Hop) -> pb.Hop:
    s = hop.span
    span = pb.Span(start_layer=s.start_layer, end_layer=s.end_layer, embedding=s.embedding, lm_head=s.lm_head)
    return pb.Hop(node=hop.node, span=span, hidden_export=hop.hidden_export)


def _verdict(v: Verdict) -> pb.Verdict:
    return pb.Verdict(
        accepted=v.accepted,
        next_token=v.next_token,
        kept_tree_nodes=_indices(v.kept_tree_nodes),
        next_tree=pb.DraftTree(tokens=v.next_tree.tokens, parents=v.next_tree.parents) if v.next_tree else None,
    )


def _tensor_ref(ref: TensorRef, pack: TensorPacker | None) -> pb.TensorRef:
    return pb.TensorRef(id=ref.id, nbytes=ref.nbytes, tensor=pack(ref) if pack else None)


def _indices(values: Iterable[int] | None) -> pb.Indices | None:
    return None if values is None else pb.Indices(values=values)


def _finite(value: float) -> float | None:
    return None if value == INF else value
