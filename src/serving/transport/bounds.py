"""What a host accepts in a message from another host: the bounds of each field, and what must hold between fields.

A new field of a message needs a row here only if it is a sequence, or if the default of its type does not fit.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

from serving.core.codec import Bound, Bounds, MalformedError
from serving.core.decoding import MIN_TEMPERATURE
from serving.messages import (
    DraftTree,
    Hop,
    LoadReport,
    Origin,
    PathStats,
    Reply,
    Request,
    SamplingParams,
    SequenceSlice,
    Span,
    StopText,
    TensorRef,
    Verdict,
)
from serving.transport.limits import Limits, PeerExpectations

MAX_INT32 = 2**31 - 1
MAX_HOPS = 16
_MAX_FLOAT = sys.float_info.max
NAME = r"[A-Za-z0-9._:/-]{1,64}"
_TENSOR_ID = r"[A-Za-z0-9._:/@-]{1,446}"  # with the `@node/` that the receiver puts before it: 512
_STOP_STRING = r"(?s:.{0,256})"

DEFAULTS = {int: Bound(0, MAX_INT32), float: Bound(0, _MAX_FLOAT), str: Bound(pattern=NAME)}


def max_token_id(expectations: PeerExpectations) -> int:
    return MAX_INT32 if expectations.vocab_size is None else expectations.vocab_size - 1


def message_bounds(limits: Limits, expectations: PeerExpectations) -> Bounds:
    """The bounds of `serving.messages.Message`."""
    most, max_token = limits.max_tokens, max_token_id(expectations)
    count, tokens, nodes = Bound(0, most), Bound(0, max_token, max_len=most), Bound(0, most, max_len=most)
    parents, layer, seconds = Bound(-1, most, max_len=most), Bound(0, 10_000), Bound(0, 1e9)
    fields = {
        Span: {"start_layer": layer, "end_layer": layer},
        TensorRef: {"id": Bound(pattern=_TENSOR_ID), "nbytes": Bound(0, 1 << 40)},
        SamplingParams: {"temperature": Bound(0, 100), "top_p": Bound(0, 1), "seed": Bound(-(2**63), 2**63 - 1)},
        PathStats: {"base_s": seconds, "per_token_s": seconds, "num_nodes": Bound(1, MAX_HOPS)},
        SequenceSlice: {
            "start": count,
            "num_tokens": Bound(1, most),
            "tokens": tokens,
            "num_drafts": count,
            "parents": parents,
            "kept_tree_nodes": nodes,
            "draft_probs": Bound(max_len=most),
            "hidden_offset": Bound(0, 0),  # chunks are cut where they run
        },
        Hop: {"hidden_export": Bound(pattern="last|all")},
        Request: {
            "hops": Bound(min_len=1, max_len=MAX_HOPS),
            "path": Bound(pattern=NAME, min_len=1, max_len=MAX_HOPS),
            "budget": Bound(1, most),
            "slack_s": Bound(-1e9, 1e9, or_infinite=True),
            "expected_tokens": Bound(0, most + 1),
            "requested_outputs": Bound(pattern=NAME, max_len=16),
            "stop_tokens": Bound(0, max_token, max_len=256),
            "slo_tokens_per_s": Bound(0, 1e6),
            "upstream_s": seconds,
            "sent_s": Bound(-_MAX_FLOAT, _MAX_FLOAT),
        },
        StopText: {"strings": Bound(pattern=_STOP_STRING, max_len=16), "tail": Bound(pattern=_STOP_STRING)},
        DraftTree: {"tokens": tokens, "parents": parents},
        Verdict: {"accepted": count, "next_token": Bound(0, max_token), "kept_tree_nodes": nodes},
        Reply: {
            "committed_len": count,
            "path": Bound(pattern=NAME, max_len=MAX_HOPS),
            "remaining_budget": count,
            "path_latency_s": seconds,
            "written": tokens,
            "origins": Bound(pattern="|".join(get_args(Origin)), max_len=most),
        },
        LoadReport: {"free_tokens": Bound(-_MAX_FLOAT, _MAX_FLOAT, or_infinite=True)},
    }
    checks: dict[type, Callable[[Any], None]] = {
        Span: _check_span,
        SamplingParams: _check_sampling,
        SequenceSlice: partial(_check_slice, most),
        DraftTree: _check_tree,
        Verdict: _check_verdict,
        Reply: _check_reply,
        Request: partial(_check_request, most, expectations.hops),
    }
    return Bounds(DEFAULTS, fields, checks)


def _check_span(span: Span) -> None:
    if span.start_layer > span.end_layer:
        raise MalformedError(f"{span.start_layer} is above end_layer={span.end_layer}", "start_layer")


def _check_sampling(sampling: SamplingParams) -> None:
    if sampling.temperature < MIN_TEMPERATURE or not sampling.top_p:
        raise MalformedError(
            f"temperature must be at least {MIN_TEMPERATURE:g}, and top_p above 0; without sampling, decoding is greedy"
        )


def _check_slice(max_tokens: int, seq: SequenceSlice) -> None:
    if seq.start + seq.num_tokens > max_tokens:
        raise MalformedError(f"{seq.num_tokens} from start={seq.start} exceed {max_tokens} tokens", "num_tokens")
    most = seq.num_tokens - 1 if seq.rule else 0
    if seq.num_drafts > most:
        raise MalformedError(f"{seq.num_drafts} must be at most {most}", "num_drafts")
    if len(seq.draft_probs) not in (0, seq.num_drafts):
        raise MalformedError(f"{len(seq.draft_probs)} distributions for {seq.num_drafts} drafts", "draft_probs")
    if seq.rule == "sample" and seq.sampling is None:
        raise MalformedError("the rule 'sample' needs sampling parameters", "sampling")
    if seq.parents is not None:
        _check_parents(seq.parents, seq.num_drafts or len(seq.parents))
    _check_kept(seq.kept_tree_nodes)


def _check_tree(tree: DraftTree) -> None:
    if tree.parents is not None:
        _check_parents(tree.parents, len(tree.tokens))


def _check_verdict(verdict: Verdict) -> None:
    _check_kept(verdict.kept_tree_nodes)


def _check_reply(reply: Reply) -> None:
    if len(reply.origins) not in (0, len(reply.written) + 1) or (reply.written and not reply.origins):
        raise MalformedError(f"{len(reply.origins)} origins for {len(reply.written) + 1} tokens", "origins")


def _check_parents(parents: Sequence[int], num_drafts: int) -> None:
    """Each parent comes before its children; -1 is the last committed token."""
    if len(parents) != num_drafts:
        raise MalformedError(f"the number of parents is {len(parents)}, that of drafts {num_drafts}", "parents")
    for i, parent in enumerate(parents):
        if parent >= i:
            raise MalformedError(f"{parent} must be -1 to {i - 1}", f"parents[{i}]")


def _check_kept(kept: Sequence[int] | None) -> None:
    if kept and len(set(kept)) < len(kept):
        raise MalformedError("a draft is named twice", "kept_tree_nodes")


def _check_request(max_tokens: int, expected_hops: tuple[Hop, ...] | None, request: Request) -> None:
    hops, index, seq = request.hops, request.hop_index, request.slice
    if expected_hops is not None and hops != expected_hops:
        raise MalformedError("they are not the hops of this run's policy", "hops")
    if index >= len(hops):
        raise MalformedError(f"{index} must be 0 to {len(hops) - 1}", "hop_index")
    if not index < len(request.path) <= len(hops):
        raise MalformedError(f"{len(request.path)} nodes, must be {index + 1} to {len(hops)}", "path")
    embedding = hops[index].span.embedding
    if seq.hidden_states is None and not embedding:
        raise MalformedError("a hop without the embedding needs hidden states", "slice.hidden_states")
    allowed = (seq.num_tokens,) if embedding else (0, seq.num_drafts)
    if len(seq.tokens) not in allowed:
        raise MalformedError(
            f"{len(seq.tokens)} for num_tokens={seq.num_tokens}, num_drafts={seq.num_drafts}", "slice.tokens"
        )
    committed_len = seq.start + seq.num_tokens - seq.num_drafts
    if seq.rule and committed_len + request.budget > max_tokens:
        raise MalformedError(f"{request.budget} behind {committed_len} tokens exceed {max_tokens} tokens", "budget")
