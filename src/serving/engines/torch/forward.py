"""Forward work: a span of layers for a batch of sessions in one packed pass, then verdicts or encoded hidden states."""

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
    """Hidden states of shape (tokens, width) as a new tensor of the same shape in `dtype`.

    int8 has the shape (tokens, width + 4): each token's numbers, then its fp32 scale. fp16 clamps to its range.
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
    """Hidden states of shape (tokens, width), with the dtype and device of `like`."""
    if encoded.dtype == torch.int8:
        scale = encoded[:, -SCALE_NBYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        encoded = encoded[:, :-SCALE_NBYTES].float() * scale
    return encoded.to(device=like.device, dtype=like.dtype)


@dataclass(frozen=True)
class ForwardContext:
    """The parts of an engine that forward work uses."""

    runner: ModelRunner
    cache: KVCacheManager
    tensor_store: TensorStore
    hidden_dtype: HiddenDtype = "fp16"
    """Of the hidden states that other hops receive."""
    proposer: MedusaProposer | None = None


def forward(work: ForwardWork, context: ForwardContext) -> tuple[tuple[SliceOutcome, ...], tuple[ForwardLoad, ...]]:
    """Runs the batch. A span without layers runs only the head, over hidden states that another hop computed.

    Raises ValueError for a slice without its tokens or hidden states, or for two slices of one session; CacheHoleError
    if a cache is too short.
    """
    if len({seq.session for seq in work.slices}) < len(work.slices):
        raise ValueError("a session has two slices in one forward, but its cache can only grow by one at a time")
    runner, cache, store = context.runner, context.cache, context.tensor_store
    span, received = work.span, [_input_hidden(seq, work.span, runner, store) for seq in work.slices]
    hidden = runner.embed([t for seq in work.slices for t in seq.tokens]) if span.embedding else torch.cat(received)
    cached: list[tuple[int, int]] = []
    inputs: list[RunnerInput] = []
    if span.start_layer < span.end_layer:
        inputs = _runner_inputs(work, cache)
        cached = [(seq.start, seq.num_tokens) for seq in work.slices]
        hidden = runner.run(hidden, inputs, span.start_layer, span.end_layer)
    parts = torch.split(
        hidden,
        [seq.num_tokens if span.embedding else len(given) for seq, given in zip(work.slices, received, strict=True)],
    )
    if not span.lm_head:
        results = tuple(
            _export(*each, span, context) for each in zip(work.slices, parts, work.hidden_exports, strict=True)
        )
        return results, (batch_load(span.end_layer - span.start_layer, cached),)
    verified = [part[-seq.num_drafts - 1 :] for seq, part in zip(work.slices, parts, strict=True) if seq.rule]
    found = _verdicts([seq for seq in work.slices if seq.rule], verified, runner, store)
    if MEDUSA_TREE in work.requested_outputs:
        found = [_with_proposal(verdict, part, context) for verdict, part in zip(found, verified, strict=True)]
    verdicts = iter(found)
    results = tuple(SliceOutcome(next(verdicts) if seq.rule else None, None) for seq in work.slices)
    for entry, seq, result in zip(inputs, work.slices, results, strict=False):
        _roll_back(entry, seq, result.verdict)
    return results, (batch_load(span.end_layer - span.start_layer, cached, sum(len(part) for part in verified)),)


def _input_hidden(seq: SequenceSlice, span: Span, runner: ModelRunner, tensor_store: TensorStore) -> torch.Tensor:
    """The received hidden states of a slice, (tokens, hidden); empty if this hop embeds."""
    if span.embedding:
        if len(seq.tokens) != seq.num_tokens:
            raise ValueError(
                f"session {seq.session!r} has {seq.num_tokens} positions but {len(seq.tokens)} tokens to embed"
            )
        return torch.empty(0, runner.model.hidden_size)
    if seq.hidden_states is None:
        raise ValueError(
            f"session {seq.session!r} has no hidden states for layers {span.start_layer} to {span.end_layer}"
        )
    encoded = tensor_store.get(seq.hidden_states)
    end = seq.hidden_offset + seq.num_tokens if span.start_layer < span.end_layer else len(encoded)
    if end >= len(encoded):
        tensor_store.discard((seq.hidden_states,))
    if end > len(encoded):
        raise ValueError(
            f"session {seq.session!r} has {seq.num_tokens} positions but {len(encoded) - seq.hidden_offset} hidden "
            "states"
        )
    return decode_hidden(encoded[seq.hidden_offset : end], runner.empty_hidden)


def _runner_inputs(work: ForwardWork, cache: KVCacheManager) -> list[RunnerInput]:
    """Those of the slices. Caches are cut before others are copied, so that their blocks are free for the copies."""
    span, copies = work.span, work.copies
    copied = {seq.session for seq, _ in copies}
    own = {seq.session: _runner_input(seq, span, cache) for seq in work.slices if seq.session not in copied}
    for seq, source in copies:
        cache.copy(source, seq.session, span.start_layer, span.end_layer, seq.start)
        own[seq.session] = _runner_input(seq, span, cache)
    return [own[seq.session] for seq in work.slices]


def _runner_input(seq: SequenceSlice, span: Span, cache: KVCacheManager) -> RunnerInput:
    session_cache = cache.open(seq.session, span.start_layer, span.end_layer, seq.start, seq.kept_tree_nodes)
    plain = seq.num_tokens - seq.num_drafts
    session_cache.draft_start = seq.start + plain
    if seq.parents is None:
        return RunnerInput(session_cache, seq.num_tokens)
    tree = (plain - 1 if parent < 0 else plain + parent for parent in seq.parents)
    return RunnerInput(session_cache, seq.num_tokens, (*range(-1, plain - 1), *tree))


def _roll_back(entry: RunnerInput, seq: SequenceSlice, verdict: Verdict | None) -> None:
    """Frees the blocks of rejected drafts. For a tree, the next request says which nodes stay."""
    if verdict and verdict.kept_tree_nodes is None:
        entry.cache.truncate(seq.start + seq.num_tokens - seq.num_drafts + verdict.accepted, seq.session)


def _export(seq: SequenceSlice, hidden: torch.Tensor, out: str, span: Span, context: ForwardContext) -> SliceOutcome:
    if not out:
        return SliceOutcome(None, None)
    encoded = encode_hidden(hidden if out == "all" else hidden[-seq.num_drafts - 1 :], context.hidden_dtype)
    nbytes = hidden_nbytes(len(encoded), context.runner.model.hidden_size, context.hidden_dtype)
    return SliceOutcome(None, context.tensor_store.put(encoded, f"hidden/{span.end_layer}/{seq.session}", nbytes))


def _with_proposal(verdict: Verdict, hidden: torch.Tensor, context: ForwardContext) -> Verdict:
    """Adds the tree that Medusa heads propose after the last accepted token.

    `hidden`: of the token before the drafts, then of the drafts.
    """
    if context.proposer is None:
        raise ValueError("a tree of Medusa heads is requested, and this engine has none")
    kept = verdict.kept_tree_nodes
    last = verdict.accepted if kept is None else kept[-1] + 1 if kept else 0
    return replace(verdict, next_tree=context.proposer.propose(context.runner.apply_norm(hidden[last])))


def _verdicts(
    seqs: Sequence[SequenceSlice], hidden: Sequence[torch.Tensor], runner: ModelRunner, tensor_store: TensorStore
) -> list[Verdict]:
    if not seqs:
        return []
    logits = runner.logits(torch.cat(tuple(hidden)))
    argmax_tokens: list[int] = logits.argmax(-1).tolist()
    verdicts, at = [], 0
    for seq in seqs:
        end = at + seq.num_drafts + 1
        verdicts.append(verdict(seq, logits[at:end], argmax_tokens[at:end], tensor_store))
        at = end
    return verdicts


def verdict(
    seq: SequenceSlice, logits: torch.Tensor, argmax_tokens: Sequence[int], tensor_store: TensorStore
) -> Verdict:
    """What the target makes of a slice's drafts; `logits` (drafts + 1, vocabulary) follow the token before them."""
    drafts = seq.tokens[len(seq.tokens) - seq.num_drafts :]
    if seq.rule == "sample":
        if seq.sampling is None:
            raise ValueError(f"session {seq.session!r} asks for the rule 'sample' without saying how tokens are drawn")
        draft_probs = [tensor_store.get(ref) for ref in seq.draft_probs]
        first = seq.start + seq.num_tokens - seq.num_drafts
        return sampling.verify_sampled(logits.cpu(), drafts, draft_probs, seq.sampling, seq.session, first, seq.parents)
    return sampling.verify_greedy(argmax_tokens, drafts, seq.parents)
