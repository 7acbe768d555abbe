"""One hop for a batch of sessions: a span of layers in one packed pass, then verdicts or hidden states.

Hidden states in the form in which they cross a link, and back: rounded once, whoever carries them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from serving.engines.torch import sampling
from serving.engines.torch.draft_heads import MedusaProposer
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import KVCacheManager
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.latency import ForwardLoad, batch_load
from serving.hardware.payload_size import SCALE_NBYTES, HiddenDtype, hidden_nbytes
from serving.messages import MEDUSA_TREE, ForwardWork, SequenceSlice, SliceOutcome, Span, Verdict

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def encode_hidden(hidden: torch.Tensor, dtype: HiddenDtype) -> torch.Tensor:
    """Hidden states of shape (rows, width) as a tensor of its own, of the same shape.

    int8 has the shape (rows, width + 4): each row's numbers, then its fp32 scale. What is too large for fp16 becomes
    its largest number.
    """
    if dtype == "int8":
        return _quantize_int8(hidden.float())
    if dtype == "fp16":
        most = torch.finfo(torch.float16).max
        return hidden.to(torch.float16, copy=True).clamp_(-most, most)
    return hidden.to(_DTYPES[dtype], copy=True)


def _quantize_int8(hidden: torch.Tensor) -> torch.Tensor:
    scale = hidden.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return torch.cat([(hidden / scale).round().to(torch.int8), scale.contiguous().view(torch.int8)], 1)


def decode_hidden(encoded: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Hidden states of shape (rows, width), of the type and on the device of `like`."""
    if encoded.dtype == torch.int8:
        scale = encoded[:, -SCALE_NBYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        encoded = encoded[:, :-SCALE_NBYTES].float() * scale
    return encoded.to(device=like.device, dtype=like.dtype)


@dataclass(frozen=True)
class ForwardContext:
    """What an engine runs hops with."""

    runner: ModelRunner
    cache: KVCacheManager
    tensor_store: TensorStore
    hidden_dtype: HiddenDtype = "fp16"
    """In which hidden states leave."""
    proposer: MedusaProposer | None = None


def forward(work: ForwardWork, context: ForwardContext) -> tuple[tuple[SliceOutcome, ...], tuple[ForwardLoad, ...]]:
    """Runs the batch; a span without layers is the head alone, over hidden states that another hop computed.

    Raises ValueError when rows come without their tokens or hidden states, or twice for one session; CacheHoleError
    when a cache is too short.
    """
    if len({rows.session for rows in work.slices}) < len(work.slices):
        raise ValueError("a session has rows twice in one forward, but its cache can only grow by one part at a time")
    stack, cache, blobs = context.runner, context.cache, context.tensor_store
    span, inputs = work.span, [_input_hidden(rows, work.span, stack, blobs) for rows in work.slices]
    hidden = stack.embed([t for r in work.slices for t in r.tokens]) if span.embedding else torch.cat(inputs)
    cached: list[tuple[int, int]] = []
    lots: list[RunnerInput] = []
    if span.start_layer < span.end_layer:
        lots = [_runner_input(rows, span, cache) for rows in work.slices]
        cached = [(rows.start, rows.num_tokens) for rows in work.slices]
        hidden = stack.run(hidden, lots, span.start_layer, span.end_layer)
    parts = torch.split(
        hidden,
        [rows.num_tokens if span.embedding else len(given) for rows, given in zip(work.slices, inputs, strict=True)],
    )
    if not span.lm_head:
        results = tuple(
            _export(*each, span, context) for each in zip(work.slices, parts, work.hidden_exports, strict=True)
        )
        return results, (batch_load(span.end_layer - span.start_layer, cached),)
    asked = [part[-rows.num_drafts - 1 :] for rows, part in zip(work.slices, parts, strict=True) if rows.rule]
    found = _verdicts([rows for rows in work.slices if rows.rule], asked, stack, blobs)
    if MEDUSA_TREE in work.requested_outputs:
        found = [_with_proposal(verdict, part, context) for verdict, part in zip(found, asked, strict=True)]
    verdicts = iter(found)
    results = tuple(SliceOutcome(next(verdicts) if rows.rule else None, None) for rows in work.slices)
    for lot, rows, result in zip(lots, work.slices, results, strict=False):
        _roll_back(lot, rows, result.verdict)
    return results, (batch_load(span.end_layer - span.start_layer, cached, sum(len(part) for part in asked)),)


def _input_hidden(seq: SequenceSlice, span: Span, runner: ModelRunner, tensor_store: TensorStore) -> torch.Tensor:
    """The hidden states that came with the rows, of shape (rows, hidden); none where this hop embeds."""
    if span.embedding:
        if len(seq.tokens) != seq.num_tokens:
            raise ValueError(f"session {seq.session!r} has {seq.num_tokens} rows but {len(seq.tokens)} tokens to embed")
        return torch.empty(0, runner.model.hidden_size)
    if seq.hidden_states is None:
        raise ValueError(
            f"session {seq.session!r} has no hidden states for layers {span.start_layer} to {span.end_layer}"
        )
    sent = tensor_store.get(seq.hidden_states)
    end = seq.hidden_offset + seq.num_tokens if span.start_layer < span.end_layer else len(sent)
    if end >= len(sent):
        tensor_store.discard((seq.hidden_states,))
    if end > len(sent):
        raise ValueError(
            f"session {seq.session!r} has {seq.num_tokens} rows but hidden states of {len(sent) - seq.hidden_offset}"
        )
    return decode_hidden(sent[seq.hidden_offset : end], runner.empty_hidden)


def _runner_input(seq: SequenceSlice, span: Span, cache: KVCacheManager) -> RunnerInput:
    slot = cache.open(seq.session, span.start_layer, span.end_layer, seq.start, seq.kept_tree_nodes)
    plain = seq.num_tokens - seq.num_drafts
    slot.draft_start = seq.start + plain
    if seq.parents is None:
        return RunnerInput(slot, seq.num_tokens)
    tree = (plain - 1 if parent < 0 else plain + parent for parent in seq.parents)
    return RunnerInput(slot, seq.num_tokens, (*range(-1, plain - 1), *tree))


def _roll_back(entry: RunnerInput, seq: SequenceSlice, verdict: Verdict | None) -> None:
    """Rejected drafts give their blocks back; of a tree the next question says what stays."""
    if verdict and verdict.kept_tree_nodes is None:
        entry.cache.truncate(seq.start + seq.num_tokens - seq.num_drafts + verdict.accepted, seq.session)


def _export(seq: SequenceSlice, hidden: torch.Tensor, out: str, span: Span, context: ForwardContext) -> SliceOutcome:
    if not out:
        return SliceOutcome(None, None)
    sent = encode_hidden(hidden if out == "all" else hidden[-seq.num_drafts - 1 :], context.hidden_dtype)
    nbytes = hidden_nbytes(len(sent), context.runner.model.hidden_size, context.hidden_dtype)
    return SliceOutcome(None, context.tensor_store.put(sent, f"hidden/{span.end_layer}/{seq.session}", nbytes))


def _with_proposal(verdict: Verdict, hidden: torch.Tensor, context: ForwardContext) -> Verdict:
    """With the heads' next tree, from the last row that stands; `hidden` are the row before the drafts, and these."""
    if context.proposer is None:
        raise ValueError("heads are to propose a tree, and this engine has none")
    last = (
        verdict.accepted
        if verdict.kept_tree_nodes is None
        else verdict.kept_tree_nodes[-1] + 1
        if verdict.kept_tree_nodes
        else 0
    )
    return replace(verdict, next_tree=context.proposer.propose(context.runner.apply_norm(hidden[last])))


def _verdicts(
    seqs: Sequence[SequenceSlice], hidden: Sequence[torch.Tensor], runner: ModelRunner, tensor_store: TensorStore
) -> list[Verdict]:
    if not seqs:
        return []
    logits = runner.logits(torch.cat(tuple(hidden)))
    choices: list[int] = logits.argmax(-1).tolist()
    verdicts, at = [], 0
    for rows in seqs:
        end = at + rows.num_drafts + 1
        verdicts.append(_verdict(rows, logits[at:end], choices[at:end], tensor_store))
        at = end
    return verdicts


def _verdict(
    seq: SequenceSlice, logits: torch.Tensor, argmax_tokens: Sequence[int], tensor_store: TensorStore
) -> Verdict:
    drafts = seq.tokens[len(seq.tokens) - seq.num_drafts :]
    if seq.rule == "sample":
        if seq.sampling is None:
            raise ValueError(f"session {seq.session!r} asks for the rule 'sample' without saying how tokens are drawn")
        odds = [tensor_store.get(blob) for blob in seq.draft_probs]
        first = seq.start + seq.num_tokens - seq.num_drafts
        return sampling.verify_sampled(logits.cpu(), drafts, odds, seq.sampling, seq.session, first)
    if seq.rule == "tree" and seq.parents is not None:
        return sampling.verify_tree(argmax_tokens, drafts, seq.parents)
    return sampling.verify_greedy(argmax_tokens, drafts)
