"""A message as it crosses the wire."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

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
    Sampling,
    Verdict,
)
from serving.transport import tandem_pb2 as pb

Pack: TypeAlias = Callable[[Blob], pb.Tensor]


def envelope(sender: str, to: str, message: Message, packs: tuple[Pack, Pack] | None) -> bytes:
    """A frame with one message.

    Args:
        packs: how a tensor that only this message needs is packed, and one that may be asked for again; None: tensors
            stay here.

    Raises KeyError when a tensor is no longer in the store, ValueError for a number that the schema cannot hold.
    """
    wire = pb.Envelope(sender=sender, to=to)
    match message:
        case Request():
            wire.request.CopyFrom(_request(message, packs))
        case Reply():
            wire.reply.CopyFrom(_reply(message))
        case Miss(session, round_, node):
            wire.miss.CopyFrom(pb.Miss(session=session, round=round_, node=node))
        case Release(session):
            wire.release.CopyFrom(pb.Release(session=session))
        case Backlog(node, queued_s, row_s, step_s, free):
            backlog = pb.Backlog(node=node, queued_s=queued_s, row_s=row_s, step_s=step_s, free=_finite(free))
            wire.backlog.CopyFrom(backlog)
    return frame(pb.Frame(envelope=wire))


def frame(wire: pb.Frame) -> bytes:
    data: bytes = wire.SerializeToString()
    return data


def _request(m: Request, packs: tuple[Pack, Pack] | None) -> pb.Request:
    return pb.Request(
        round=m.round, rows=_rows(m.rows, packs), route=[_hop(hop) for hop in m.route], hop=m.hop, path=m.path,
        reply_to=m.reply_to, budget=m.budget, slack_s=_finite(m.slack_s), value=m.value, probes=m.probes, ends=m.ends,
        rate=m.rate, spent_s=m.spent_s, sent_s=m.sent_s, condition=_condition(m.condition),
    )  # fmt: skip


def _reply(m: Reply) -> pb.Reply:
    return pb.Reply(
        session=m.session, round=m.round, at=m.at, verdict=_verdict(m.verdict), path=m.path, left=m.left,
        spent_s=m.spent_s, condition=_condition(m.condition),
    )  # fmt: skip


def _condition(c: Condition | None) -> pb.Condition | None:
    if c is None:
        return None
    return pb.Condition(tokens=c.tokens, base_s=c.base_s, row_s=c.row_s, nodes=c.nodes, uplink_mbps=c.uplink_mbps)


def _rows(rows: Rows, packs: tuple[Pack, Pack] | None) -> pb.Rows:
    once, again = packs or (None, None)
    return pb.Rows(
        session=rows.session, start=rows.start, n=rows.n, tokens=rows.tokens, check=rows.check, rule=rows.rule,
        sampling=_sampling(rows.sampling) if rows.sampling else None,
        parents=_indices(rows.parents), keep=_indices(rows.keep),
        blob=_blob(rows.blob, once) if rows.blob else None, odds=[_blob(blob, again) for blob in rows.odds],
    )  # fmt: skip


def _sampling(s: Sampling) -> pb.Sampling:
    return pb.Sampling(temperature=s.temperature, top_k=s.top_k, top_p=s.top_p, seed=s.seed)


def _hop(hop: Hop) -> pb.Hop:
    s = hop.span
    return pb.Hop(node=hop.node, span=pb.Span(first=s.first, last=s.last, embed=s.embed, head=s.head), out=hop.out)


def _verdict(v: Verdict) -> pb.Verdict:
    proposal = pb.Proposal(tokens=v.proposal[0], parents=v.proposal[1]) if v.proposal else None
    return pb.Verdict(accepted=v.accepted, token=v.token, keep=_indices(v.keep), proposal=proposal)


def _blob(blob: Blob, pack: Pack | None) -> pb.Blob:
    return pb.Blob(id=blob.id, nbytes=blob.nbytes, tensor=pack(blob) if pack else None)


def _indices(values: Iterable[int] | None) -> pb.Indices | None:
    return None if values is None else pb.Indices(values=values)


def _finite(value: float) -> float | None:
    return None if value == INF else value
