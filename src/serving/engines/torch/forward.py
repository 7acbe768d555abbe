"""One hop for a batch of sessions: a span of layers in one packed pass, then verdicts or hidden states.

Hidden states in the form in which they cross a link, and back: rounded once, whoever carries them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from serving.engines.torch import sampling
from serving.engines.torch.draft_heads import Proposer
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Cache
from serving.engines.torch.tensor_store import Blobs
from serving.hardware.latency import Load, load
from serving.hardware.payload_size import SCALE_NBYTES, Number, hidden_nbytes
from serving.messages import HEADS, Forward, Result, Rows, Span, Verdict

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def as_sent(hidden: torch.Tensor, number: Number) -> torch.Tensor:
    """Hidden states of shape (rows, width) as a tensor of its own, of the same shape.

    int8 has the shape (rows, width + 4): each row's numbers, then its fp32 scale. What is too large for fp16 becomes
    its largest number.
    """
    if number == "int8":
        return _scaled(hidden.float())
    if number == "fp16":
        most = torch.finfo(torch.float16).max
        return hidden.to(torch.float16, copy=True).clamp_(-most, most)
    return hidden.to(_TYPES[number], copy=True)


def _scaled(hidden: torch.Tensor) -> torch.Tensor:
    scale = hidden.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return torch.cat([(hidden / scale).round().to(torch.int8), scale.contiguous().view(torch.int8)], 1)


def as_received(sent: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Hidden states of shape (rows, width), of the type and on the device of `like`."""
    if sent.dtype == torch.int8:
        scale = sent[:, -SCALE_NBYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        sent = sent[:, :-SCALE_NBYTES].float() * scale
    return sent.to(device=like.device, dtype=like.dtype)


@dataclass(frozen=True)
class Means:
    """What an engine runs hops with."""

    stack: Stack
    cache: Cache
    blobs: Blobs
    number: Number = "fp16"
    """In which hidden states leave."""
    heads: Proposer | None = None


def forward(work: Forward, means: Means) -> tuple[tuple[Result, ...], tuple[Load, ...]]:
    """Runs the batch; a span without layers is the head alone, over hidden states that another hop computed.

    Raises ValueError when rows come without their tokens or hidden states, or twice for one session; CacheHoleError
    when a cache is too short.
    """
    if len({rows.session for rows in work.rows}) < len(work.rows):
        raise ValueError("a session has rows twice in one forward, but its cache can only grow by one part at a time")
    stack, cache, blobs = means.stack, means.cache, means.blobs
    span, inputs = work.span, [_input(rows, work.span, stack, blobs) for rows in work.rows]
    hidden = stack.embed([t for r in work.rows for t in r.tokens]) if span.embed else torch.cat(inputs)
    cached: list[tuple[int, int]] = []
    lots: list[Lot] = []
    if span.first < span.last:
        lots = [_lot(rows, span, cache) for rows in work.rows]
        cached = [(rows.start, rows.n) for rows in work.rows]
        hidden = stack.run(hidden, lots, span.first, span.last)
    parts = torch.split(
        hidden, [rows.n if span.embed else len(given) for rows, given in zip(work.rows, inputs, strict=True)]
    )
    if not span.head:
        results = tuple(_export(*each, span, means) for each in zip(work.rows, parts, work.out, strict=True))
        return results, (load(span.last - span.first, cached),)
    asked = [part[-rows.check - 1 :] for rows, part in zip(work.rows, parts, strict=True) if rows.rule]
    found = _verdicts([rows for rows in work.rows if rows.rule], asked, stack, blobs)
    if HEADS in work.probes:
        found = [_proposed(verdict, part, means) for verdict, part in zip(found, asked, strict=True)]
    verdicts = iter(found)
    results = tuple(Result(next(verdicts) if rows.rule else None, None) for rows in work.rows)
    for lot, rows, result in zip(lots, work.rows, results, strict=False):
        _roll_back(lot, rows, result.verdict)
    return results, (load(span.last - span.first, cached, sum(len(part) for part in asked)),)


def _input(rows: Rows, span: Span, stack: Stack, blobs: Blobs) -> torch.Tensor:
    """The hidden states that came with the rows, of shape (rows, hidden); none where this hop embeds."""
    if span.embed:
        if len(rows.tokens) != rows.n:
            raise ValueError(f"session {rows.session!r} has {rows.n} rows but {len(rows.tokens)} tokens to embed")
        return torch.empty(0, stack.model.hidden)
    if rows.blob is None:
        raise ValueError(f"session {rows.session!r} has no hidden states for layers {span.first} to {span.last}")
    sent = blobs.get(rows.blob)
    end = rows.skip + rows.n if span.first < span.last else len(sent)
    if end >= len(sent):
        blobs.discard((rows.blob,))
    if end > len(sent):
        raise ValueError(f"session {rows.session!r} has {rows.n} rows but hidden states of {len(sent) - rows.skip}")
    return as_received(sent[rows.skip : end], stack.like)


def _lot(rows: Rows, span: Span, cache: Cache) -> Lot:
    slot = cache.open(rows.session, span.first, span.last, rows.start, rows.keep)
    plain = rows.n - rows.check
    slot.drafts_at = rows.start + plain
    if rows.parents is None:
        return Lot(slot, rows.n)
    tree = (plain - 1 if parent < 0 else plain + parent for parent in rows.parents)
    return Lot(slot, rows.n, (*range(-1, plain - 1), *tree))


def _roll_back(lot: Lot, rows: Rows, verdict: Verdict | None) -> None:
    """Rejected drafts give their blocks back; of a tree the next question says what stays."""
    if verdict and verdict.keep is None:
        lot.slot.truncate(rows.start + rows.n - rows.check + verdict.accepted, rows.session)


def _export(rows: Rows, hidden: torch.Tensor, out: str, span: Span, means: Means) -> Result:
    if not out:
        return Result(None, None)
    sent = as_sent(hidden if out == "all" else hidden[-rows.check - 1 :], means.number)
    nbytes = hidden_nbytes(len(sent), means.stack.model.hidden, means.number)
    return Result(None, means.blobs.put(sent, f"hidden/{span.last}/{rows.session}", nbytes))


def _proposed(verdict: Verdict, hidden: torch.Tensor, means: Means) -> Verdict:
    """With the heads' next tree, from the last row that stands; `hidden` are the row before the drafts, and these."""
    if means.heads is None:
        raise ValueError("heads are to propose a tree, and this engine has none")
    last = verdict.accepted if verdict.keep is None else verdict.keep[-1] + 1 if verdict.keep else 0
    return replace(verdict, proposal=means.heads.propose(means.stack.normed(hidden[last])))


def _verdicts(asked: Sequence[Rows], hidden: Sequence[torch.Tensor], stack: Stack, blobs: Blobs) -> list[Verdict]:
    if not asked:
        return []
    logits = stack.logits(torch.cat(tuple(hidden)))
    choices: list[int] = logits.argmax(-1).tolist()
    verdicts, at = [], 0
    for rows in asked:
        end = at + rows.check + 1
        verdicts.append(_verdict(rows, logits[at:end], choices[at:end], blobs))
        at = end
    return verdicts


def _verdict(rows: Rows, logits: torch.Tensor, choices: Sequence[int], blobs: Blobs) -> Verdict:
    drafts = rows.tokens[len(rows.tokens) - rows.check :]
    if rows.rule == "sample":
        if rows.sampling is None:
            raise ValueError(f"session {rows.session!r} asks for the rule 'sample' without saying how tokens are drawn")
        odds = [blobs.get(blob) for blob in rows.odds]
        first = rows.start + rows.n - rows.check
        return sampling.sample(logits.cpu(), drafts, odds, rows.sampling, rows.session, first)
    if rows.rule == "tree" and rows.parents is not None:
        return sampling.tree(choices, drafts, rows.parents)
    return sampling.greedy(choices, drafts)
