"""Trees that a draft model grows: against the same tree grown without a cache, in batches, and verified losslessly."""

import copy
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from serving.core.tree_growth import TreeGrowth, kept_parents, pick
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.engines.torch.tensor_store import TensorStore
from serving.messages import (
    DraftBatch,
    DraftStopRule,
    DraftWork,
    ForwardWork,
    SamplingParams,
    SequenceSlice,
    Span,
    TreeRule,
)
from tests.support.tiny_models import VARIANTS

WHOLE = Span(0, 4, embedding=True, lm_head=True)
TREE = DraftStopRule(12, tree=TreeRule(4, 3))


def reference(model: Any, prompt: tuple[int, ...], rule: DraftStopRule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tree, where each node's path is run as a text of its own by `transformers`."""
    growth = TreeGrowth(rule)
    while growth.frontier:
        found = []
        for node in growth.frontier:
            text = (*prompt, *pick(growth.tokens, growth.path(node)))
            with torch.inference_mode():
                odds = model(torch.tensor([text])).logits[0, -1].softmax(-1)
            best = odds.topk(growth.num_children(node))
            found.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        growth.extend(found, [False] * len(found))
    kept = growth.kept()
    return pick(growth.tokens, kept), kept_parents(growth.parents, kept)


@pytest.mark.parametrize("architecture", list(VARIANTS))
def test_a_tree_is_that_of_paths_run_as_texts(architecture: str, causal: Any, prompts: list[tuple[int, ...]]):
    model = causal(architecture)
    engine = TorchEngine(decompose(copy.deepcopy(model)))
    for number, prompt in enumerate(prompts):
        drafted, loads = engine.execute(DraftWork(str(number), 0, prompt, TREE))
        assert (drafted.tokens, drafted.parents) == reference(model, prompt, TREE)
        assert drafted.cached_len == len(prompt)
        assert len(loads) == 4
        assert loads[0].num_tokens == len(prompt)
        assert all(load.num_tokens <= 3 for load in loads[1:])


def test_a_tree_leaves_the_cache_as_it_found_it(llama_copy: Any, prompts: list[tuple[int, ...]]):
    engine, fresh = (TorchEngine(decompose(copy.deepcopy(llama_copy))) for _ in range(2))
    prompt = prompts[3]
    engine.execute(DraftWork("a", 0, prompt[:5], TREE))
    continued, _ = engine.execute(DraftWork("a", 5, prompt[5:], DraftStopRule(6)))
    assert continued.tokens == fresh.execute(DraftWork("a", 0, prompt, DraftStopRule(6)))[0].tokens


def test_trees_of_several_sessions_in_a_batch_are_those_drafted_alone(llama_copy: Any, prompts: list[tuple[int, ...]]):
    alone, together = (TorchEngine(decompose(copy.deepcopy(llama_copy))) for _ in range(2))
    works = [DraftWork(str(n), 0, prompt, TREE) for n, prompt in enumerate(prompts)]
    works.append(DraftWork("plain", 0, prompts[2], DraftStopRule(1)))
    works.append(DraftWork("fill", 0, prompts[3], DraftStopRule(0)))
    batch, loads = together.execute(DraftBatch(tuple(works)))
    for work, outcome in zip(works, batch.outcomes, strict=True):
        want = alone.execute(work)[0]
        assert (outcome.tokens, outcome.parents, outcome.cached_len) == (want.tokens, want.parents, want.cached_len)
    assert len(loads) == 4
    assert loads[0].num_tokens == sum(len(work.input_tokens) for work in works)
    assert loads[0].extra_sessions == 5
    assert all(load.extra_sessions == 3 for load in loads[1:])


def test_a_branch_ends_where_its_score_falls(llama_copy: Any, prompts: list[tuple[int, ...]]):
    engine = TorchEngine(decompose(llama_copy))
    never, always = (DraftStopRule(12, "confidence", threshold, False, 1, TreeRule(4, 3)) for threshold in (0.0, 1.1))
    free, _ = engine.execute(DraftWork("a", 0, prompts[3], TREE))
    kept, _ = engine.execute(DraftWork("b", 0, prompts[3], never))
    cut, loads = engine.execute(DraftWork("c", 0, prompts[3], always))
    assert kept.tokens == free.tokens
    assert cut.parents == (-1, -1, -1)  # min_tokens: the first level is there whatever its score
    assert len(loads) == 1


def test_a_tree_with_nothing_to_feed_is_refused(llama_copy: Any):
    with pytest.raises(ValueError, match="session 'a' asks for a tree with nothing to feed"):
        TorchEngine(decompose(llama_copy)).execute(DraftWork("a", 0, (), TREE))


def test_verified_trees_write_the_targets_text(llama: Any, causal: Any, prompts: list[tuple[int, ...]]):
    small = causal("llama", 3)
    with torch.no_grad():  # a drafter that is right now and then
        for mine, its in zip(small.parameters(), llama.parameters(), strict=True):
            mine.copy_(its + 0.35 * its.std() * torch.randn(its.shape, generator=torch.Generator().manual_seed(1)))
    drafter, target = TorchEngine(decompose(small)), TorchEngine(decompose(copy.deepcopy(llama)))
    lengths = []
    for number, prompt in enumerate(prompts):
        text, cached, kept = list(prompt), 0, None
        while len(text) < len(prompt) + 30:
            drafted, _ = drafter.execute(DraftWork(str(number), 0, tuple(text), TREE))
            new = (*text[cached:], *drafted.tokens)
            seq = SequenceSlice(
                str(number), cached, len(new), new, len(drafted.tokens), "greedy",
                parents=drafted.parents, kept_tree_nodes=kept,
            )  # fmt: skip
            ((result,), _) = target.execute(ForwardWork(WHOLE, (seq,), ("last",)))
            verdict = result.verdict
            text += [*(drafted.tokens[node] for node in verdict.kept_tree_nodes), verdict.next_token]
            cached, kept = len(text) - 1, verdict.kept_tree_nodes
            lengths.append(verdict.accepted)
        with torch.inference_mode():
            wanted = llama.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, pad_token_id=0)[0]
        assert text[: len(wanted)] == wanted.tolist()
    assert 0 < sum(lengths) < 4 * len(lengths)


def test_sampled_trees_write_the_targets_distribution(causal: Any):
    """The first two tokens of many sessions, through two engines."""
    sampling, prompt, rounds, batch = SamplingParams(1.2, 0, 1.0, seed=5), (5, 9, 17), 2400, 100
    target_model, drafter_model = (causal("llama", seed, vocab_size=32, num_hidden_layers=1) for seed in (1, 2))
    rule, whole, store = DraftStopRule(7, tree=TreeRule(2, 4)), Span(0, 1, embedding=True, lm_head=True), TensorStore()
    with torch.inference_mode():
        odds = (target_model(torch.tensor([prompt])).logits[0, -1].double() / sampling.temperature).softmax(-1)
    drafter, target = (TorchEngine(decompose(model), tensor_store=store) for model in (drafter_model, target_model))
    counts, firsts = torch.zeros(32, dtype=torch.float64), 0
    for at in range(0, rounds, batch):
        rows = []
        for session in map(str, range(at, at + batch)):
            drafted, _ = drafter.execute(DraftWork(session, 0, prompt, rule, sampling=sampling))
            siblings = [ref for ref, parent in zip(drafted.draft_probs, drafted.parents, strict=True) if parent < 0]
            assert len(siblings) == 3
            assert len(set(siblings)) == 1
            rows.append(
                SequenceSlice(
                    session, 0, 3 + len(drafted.tokens), (*prompt, *drafted.tokens), len(drafted.tokens), "sample",
                    sampling, drafted.parents, draft_probs=drafted.draft_probs,
                )
            )  # fmt: skip
        results, _ = target.execute(ForwardWork(whole, tuple(rows), ("last",) * batch))
        for row, result in zip(rows, results, strict=True):
            path = result.verdict.kept_tree_nodes
            counts[row.tokens[3 + path[0]] if path else result.verdict.next_token] += 1
            firsts += bool(path) and path[0] > 0
            drafter.drop(row.session, None)
            target.drop(row.session, 0)
    rare = odds * rounds < 5
    seen = [*counts[~rare].tolist(), float(counts[rare].sum())]
    wanted = [*(odds[~rare] * rounds).tolist(), float((odds[rare] * rounds).sum())]
    assert firsts > 0.1 * rounds  # later siblings are accepted, too
    assert 0.01 < chisquare(seen, wanted).pvalue < 0.999
