"""Spans of layers over ragged packed rows, for every architecture, against the unsplit `transformers` model."""

import copy

import pytest
import torch

from serving.engines.torch.model import DecomposedModel, decompose
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache

LENGTHS = (5, 23, 41)
VARIANTS = (
    "llama", "llama_yarn", "qwen2", "qwen2_mixed", "qwen3", "mistral", "mistral_open", "phi3", "phi3_longrope", "neox",
    "neox_sequential",
)  # fmt: skip


def _tokens(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 97, (n,), generator=generator).tolist() for n in lengths]


def _pieces(n, sizes):
    at = 0
    while at < n:
        step = min(n - at, next(sizes))
        yield at, at + step
        at += step


@torch.inference_mode()
def _in_spans(model: DecomposedModel, batches, sessions, cuts):
    """Hidden states of each session's last rows, over spans with a cache each, the sessions' rows packed."""
    stack = ModelRunner(model, model.vocab_size)
    slots = {(s, a): SequenceCache(model, a, b) for s in range(len(sessions)) for a, b in cuts}
    seen = [[] for _ in sessions]
    for batch in batches:
        hidden = stack.embed([t for s, a, b in batch for t in sessions[s][a:b]])
        for first, last in cuts:
            lots = [RunnerInput(slots[s, first], b - a) for s, a, b in batch]
            hidden = stack.run(hidden, lots, first, last)
        rows = stack.logits(hidden).split([b - a for _, a, b in batch])
        for (s, _, _), part in zip(batch, rows, strict=True):
            seen[s].append(part)
    return [torch.cat(parts) for parts in seen]


@pytest.mark.parametrize("variant", VARIANTS)
def test_spans_over_ragged_chunks_give_the_unsplit_models_logits(causal, variant):
    whole = causal(variant)
    sessions = _tokens(LENGTHS)
    model = decompose(copy.deepcopy(whole))
    chunks = [list(_pieces(len(s), iter([9, 1, 12, 5, 1, 1, 40]))) for s in sessions]
    if variant == "phi3_longrope":  # a sequence that grows past the original length has other keys: prefill at once
        chunks = [[(0, n)] for n in LENGTHS]
    rounds = max(len(c) for c in chunks)
    batches = [[(s, *c[i]) for s, c in enumerate(chunks) if i < len(c)] for i in range(rounds)]
    got = _in_spans(model, batches, sessions, [(0, 1), (1, 3), (3, 4)])
    for session, logits in zip(sessions, got, strict=True):
        with torch.inference_mode():
            want = whole(torch.tensor([session])).logits[0]
        assert (logits - want).abs().max() < 1e-4


def test_the_check_of_this_file_detects_a_wrong_cache(causal):
    whole = causal("llama")
    sessions = _tokens((12, 12))
    model = decompose(copy.deepcopy(whole))
    swapped = [sessions[0][:6] + sessions[1][6:]]
    got = _in_spans(model, [[(0, 0, 6)], [(0, 6, 12)]], swapped, [(0, 4)])[0]
    with torch.inference_mode():
        want = whole(torch.tensor([sessions[1]])).logits[0]
    assert (got[6:] - want[6:]).abs().max() > 0.1


@torch.inference_mode()
def test_stale_cache_entries_after_a_rollback_are_ignored(causal):
    whole = causal("llama")
    model = decompose(copy.deepcopy(whole))
    stack, slot = ModelRunner(model, model.vocab_size), SequenceCache(model, 0, 4)
    right, wrong = _tokens((30, 50))
    slot.reserve(50)
    for layers in slot.read_views(0, slot.capacity):
        for layer in layers:
            layer.fill_(float("nan"))
    stack.run(stack.embed(right[:11]), [RunnerInput(slot, 11)], 0, 4)
    stack.run(stack.embed(wrong), [RunnerInput(slot, 50)], 0, 4)
    slot.truncate(11, "a")
    hidden = stack.run(stack.embed(right[11:]), [RunnerInput(slot, 19)], 0, 4)
    want = whole(torch.tensor([right])).logits[0]
    assert (stack.logits(hidden) - want[11:]).abs().max() < 1e-4


@pytest.mark.parametrize("variant", ["llama", "qwen2_mixed", "mistral", "phi3", "neox"])
@torch.inference_mode()
def test_each_tree_node_has_the_logits_of_its_path(causal, variant):
    model = decompose(causal(variant))
    stack, slot = ModelRunner(model, model.vocab_size), SequenceCache(model, 0, 4)
    past, tree = _tokens((10, 7), seed=3)
    parents = (-1, 0, 0, 1, 1, 2, -1)
    stack.run(stack.embed(past), [RunnerInput(slot, 10)], 0, 4)
    nodes = stack.logits(stack.run(stack.embed(tree), [RunnerInput(slot, 7, parents)], 0, 4))
    for node in range(7):
        path, at = [], node
        while at >= 0:
            path.insert(0, tree[at])
            at = parents[at]
        slot.truncate(10, "a")
        alone = stack.logits(stack.run(stack.embed(path), [RunnerInput(slot, len(path))], 0, 4))[-1]
        assert (nodes[node] - alone).abs().max() < 1e-4


@torch.inference_mode()
def test_padding_of_the_vocabulary_is_cut_off(causal):
    model = decompose(causal("llama"))
    stack = ModelRunner(model, 90)
    hidden = stack.run(stack.embed([5, 6]), [RunnerInput(SequenceCache(model, 0, 4), 2)], 0, 4)
    assert stack.logits(hidden).shape == (2, 90)
