"""A message as it crosses the wire."""

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
    """A frame with one message.

    Args:
        packs: how a tensor that only this message needs is packed, and one that may be asked for again; None: tensors
            stay here.

    Raises KeyError when a tensor is no longer in the store, ValueError for a number that the schema cannot hold.
    """
    wire = pb.Envelope(sender=sender, to=to)
    match message:
        case Request():
            wire.request.CopyFrom(_request(message, packers))
        case Reply():
            wire.reply.CopyFrom(_reply(message))
        case CacheMiss(session, round_, node):
            wire.miss.CopyFrom(pb.Miss(session=session, round=round_, node=node))
        case Release(session):
            wire.release.CopyFrom(pb.Release(session=session))
        case LoadReport(node, queued_s, row_s, step_s, free):
            backlog = pb.Backlog(node=node, queued_s=queued_s, row_s=row_s, step_s=step_s, free=_finite(free))
            wire.backlog.CopyFrom(backlog)
    return encode_frame(pb.Frame(envelope=wire))


def encode_frame(wire: pb.Frame) -> bytes:
    data: bytes = wire.SerializeToString()
    return data


def _request(m: Request, packers: tuple[TensorPacker, TensorPacker] | None) -> pb.Request:
    return pb.Request(
        round=m.attempt, rows=_sequence_slice(m.slice, packers), route=[_hop(hop) for hop in m.hops], hop=m.hop_index, path=m.path,
        reply_to=m.reply_to, budget=m.budget, slack_s=_finite(m.slack_s), value=m.expected_tokens, probes=m.requested_outputs, ends=m.stop_tokens,
        rate=m.slo_tokens_per_s, spent_s=m.upstream_s, sent_s=m.sent_s, condition=_path_stats(m.path_stats),
    )  # fmt: skip


def _reply(m: Reply) -> pb.Reply:
    return pb.Reply(
        session=m.session, round=m.attempt, at=m.committed_len, verdict=_verdict(m.verdict), path=m.path, left=m.remaining_budget,
        spent_s=m.path_latency_s, condition=_path_stats(m.path_stats),
    )  # fmt: skip


def _path_stats(c: PathStats | None) -> pb.Condition | None:
    if c is None:
        return None
    return pb.Condition(
        tokens=c.mean_batch_tokens, base_s=c.base_s, row_s=c.per_token_s, nodes=c.num_nodes, uplink_mbps=c.uplink_mbps
    )


def _sequence_slice(seq: SequenceSlice, packers: tuple[TensorPacker, TensorPacker] | None) -> pb.Rows:
    once, again = packers or (None, None)
    return pb.Rows(
        session=seq.session, start=seq.start, n=seq.num_tokens, tokens=seq.tokens, check=seq.num_drafts, rule=seq.rule,
        sampling=_sampling(seq.sampling) if seq.sampling else None,
        parents=_indices(seq.parents), keep=_indices(seq.kept_tree_nodes),
        blob=_tensor_ref(seq.hidden_states, once) if seq.hidden_states else None, odds=[_tensor_ref(blob, again) for blob in seq.draft_probs],
    )  # fmt: skip


def _sampling(s: SamplingParams) -> pb.Sampling:
    return pb.Sampling(temperature=s.temperature, top_k=s.top_k, top_p=s.top_p, seed=s.seed)


def _hop(hop: Hop) -> pb.Hop:
    s = hop.span
    return pb.Hop(
        node=hop.node,
        span=pb.Span(first=s.start_layer, last=s.end_layer, embed=s.embedding, head=s.lm_head),
        out=hop.hidden_export,
    )


def _verdict(v: Verdict) -> pb.Verdict:
    proposal = pb.Proposal(tokens=v.next_tree[0], parents=v.next_tree[1]) if v.next_tree else None
    return pb.Verdict(accepted=v.accepted, token=v.next_token, keep=_indices(v.kept_tree_nodes), proposal=proposal)


def _tensor_ref(ref: TensorRef, pack: TensorPacker | None) -> pb.Blob:
    return pb.Blob(id=ref.id, nbytes=ref.nbytes, tensor=pack(ref) if pack else None)


def _indices(values: Iterable[int] | None) -> pb.Indices | None:
    return None if values is None else pb.Indices(values=values)


def _finite(value: float) -> float | None:
    return None if value == INF else value
