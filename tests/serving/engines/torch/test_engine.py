"""The engine as nodes use it: sessions, recomputation, and the loads of passes."""

import copy

import pytest
import torch
from scipy.stats import chisquare

from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.executor import CacheHoleError
from serving.messages import DraftStopRule, DraftWork, ForwardWork, SamplingParams, SequenceSlice, Span, TensorRef

WHOLE = Span(0, 4, embedding=True, lm_head=True)


def _greedy(causal, prompt, n):
    out = causal.generate(torch.tensor([prompt]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)
    return tuple(out[0, len(prompt) :].tolist())


@pytest.fixture(scope="module")
def small(causal):
    """A drafter that agrees with the target often, but not always: its weights, disturbed."""
    model = causal("llama")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator)
    return model


def _speculate(drafter, target, sessions, limit, k=4):
    """Draft k, verify all sessions in one forward, settle; until each has `limit` tokens."""
    texts = {name: list(prompt) for name, prompt in sessions.items()}
    cached, sent, loads = dict.fromkeys(texts, 0), dict.fromkeys(texts, 0), []
    goal = {name: len(prompt) + limit for name, prompt in sessions.items()}
    accepted = 0
    while active := [name for name in texts if len(texts[name]) < goal[name]]:
        rows = []
        for name in active:
            text, start = texts[name], min(cached[name], len(texts[name]) - 1)
            drafted, passes = drafter.execute(DraftWork(name, start, tuple(text[start:]), DraftStopRule(k)))
            loads += [("draft", load) for load in passes]
            cached[name] = drafted.cached_len
            new = (*text[sent[name] :], *drafted.tokens)
            rows.append(SequenceSlice(name, sent[name], len(new), new, len(drafted.tokens), "greedy"))
        results, passes = target.execute(ForwardWork(WHOLE, tuple(rows), ("last",) * len(rows)))
        loads += [("verify", load) for load in passes]
        for row, result in zip(rows, results, strict=True):
            verdict, text = result.verdict, texts[row.session]
            accepted += verdict.accepted
            agreed = len(text) + verdict.accepted
            text += [*row.tokens[row.num_tokens - row.num_drafts :][: verdict.accepted], verdict.next_token]
            cached[row.session], sent[row.session] = min(cached[row.session], agreed), agreed
    return {name: tuple(text[len(sessions[name]) :][:limit]) for name, text in texts.items()}, accepted, loads


def test_greedy_drafting_and_verifying_writes_the_targets_text(llama, small, prompts):
    sessions = {f"s{i}": prompt for i, prompt in enumerate(prompts)}
    drafter, target = TorchEngine(decompose(copy.deepcopy(small))), TorchEngine(decompose(copy.deepcopy(llama)))
    written, accepted, _ = _speculate(drafter, target, sessions, 40)
    assert written == {name: _greedy(llama, prompt, 40) for name, prompt in sessions.items()}
    assert 20 < accepted < 150  # neither never nor always: both paths of the verdict were walked


def test_no_prefix_is_computed_twice(llama, small, prompts):
    sessions = {"a": prompts[2], "b": prompts[3]}
    models = {"draft": copy.deepcopy(small), "verify": copy.deepcopy(llama)}
    seen = {"draft": [], "verify": []}
    for name, model in models.items():
        model.model.layers[2].register_forward_hook(lambda _, args, __, rows=seen[name]: rows.append(args[0].shape[1]))
    engines = {name: TorchEngine(decompose(model)) for name, model in models.items()}
    written, _, loads = _speculate(engines["draft"], engines["verify"], sessions, 20)
    for name in models:
        assert seen[name] == [load.num_tokens for part, load in loads if part == name]
    first = sum(map(len, sessions.values())) + 4 * len(sessions)  # prompts and their first drafts
    later = [load.num_tokens for part, load in loads if part == "verify"][1:]
    assert seen["verify"][0] == first
    assert all(rows in (5, 10) for rows in later)  # per session the last token agreed and four drafts
    assert sum(seen["draft"]) <= sum(map(len, sessions.values())) + 2 * (
        sum(map(len, written.values())) + 5 * len(later)
    )


def test_sampling_through_two_engines_writes_the_targets_distribution(causal):
    sampling, prompt, rounds, batch = SamplingParams(1.2, 0, 1.0, seed=5), (5, 9, 17), 2400, 100
    target_model, drafter_model = (causal("llama", seed, vocab_size=32, num_hidden_layers=1) for seed in (1, 2))
    with torch.inference_mode():
        odds = (target_model(torch.tensor([prompt])).logits[0, -1].double() / sampling.temperature).softmax(-1)
    blobs, whole = TensorStore(), Span(0, 1, embedding=True, lm_head=True)
    drafter, target = (TorchEngine(decompose(model), tensor_store=blobs) for model in (drafter_model, target_model))
    counts, accepted = torch.zeros(32, dtype=torch.float64), 0
    for at in range(0, rounds, batch):
        rows = []
        for session in map(str, range(at, at + batch)):
            drafted, _ = drafter.execute(DraftWork(session, 0, prompt, DraftStopRule(2), sampling=sampling))
            rows.append(
                SequenceSlice(
                    session, 0, 5, (*prompt, *drafted.tokens), 2, "sample", sampling, draft_probs=drafted.draft_probs
                )
            )
        results, _ = target.execute(ForwardWork(whole, tuple(rows), ("last",) * batch))
        for row, result in zip(rows, results, strict=True):
            counts[row.tokens[3] if result.verdict.accepted else result.verdict.next_token] += 1
            accepted += result.verdict.accepted
            drafter.drop(row.session, None)
            target.drop(row.session, 0)
    rare = odds * rounds < 5
    seen = [*counts[~rare].tolist(), float(counts[rare].sum())]
    wanted = [*(odds[~rare] * rounds).tolist(), float((odds[rare] * rounds).sum())]
    assert min(wanted) >= 5
    assert 0.2 * rounds < accepted < 1.6 * rounds
    assert 0.01 < chisquare(seen, wanted).pvalue < 0.999


def test_loads_count_rows_pairs_cache_and_head(llama_copy):
    engine = TorchEngine(decompose(llama_copy))
    _, loads = engine.execute(DraftWork("a", 0, (5, 6, 7), DraftStopRule(2)))
    assert loads == ((4, 3, 9, 0, 1, 1, 0, 0), (4, 1, 4, 3, 1, 1, 0, 0))
    _, loads = engine.execute(DraftWork("b", 0, (5, 6, 7), DraftStopRule(0)))
    assert loads == ((4, 3, 9, 0, 0, 1, 0, 0),)
    rows = (SequenceSlice("a", 0, 3, (5, 6, 7), 2, "greedy"), SequenceSlice("b", 0, 2, (5, 6)))
    _, loads = engine.execute(ForwardWork(WHOLE, rows, ("last", "last")))
    assert loads == ((4, 5, 13, 0, 3, 1, 1, 0),)


def test_one_session_has_separate_caches_for_drafting_and_for_each_span(llama_copy):
    engine = TorchEngine(decompose(llama_copy))
    engine.execute(DraftWork("a", 0, (5, 6, 7), DraftStopRule(0)))
    engine.execute(ForwardWork(Span(0, 2, embedding=True), (SequenceSlice("a", 0, 2, (5, 6)),), ("all",)))
    lengths = engine.cache.length("a", None), engine.cache.length("a", 0), engine.cache.length("a", 2)
    assert lengths == (3, 2, 0)
    engine.drop("a", None)
    assert (engine.cache.length("a", None), engine.cache.length("a", 0)) == (0, 2)
    engine.drop("a", 0)
    engine.drop("unknown", 0)
    assert len(engine.cache) == 0


def _logits_of(engine, *works):
    """The last hidden states that the head reads, of the last work."""
    for work in works:
        (result, *_), _ = engine.execute(work)
    return engine.tensor_store.take(result.hidden_states)


@pytest.mark.parametrize("length", [1, 5, 16, 33])
def test_a_session_that_begins_with_a_copy_computes_what_it_would_alone(llama_copy, length):
    body, generator = Span(0, 4, embedding=True), torch.Generator().manual_seed(length)
    text = tuple(torch.randint(3, 60, (40,), generator=generator).tolist())
    other = (*text[:length], *(token ^ 1 for token in text[length:]))

    def rows(session, start, tokens):
        return SequenceSlice(session, start, len(tokens), tokens)

    alone = _logits_of(TorchEngine(decompose(llama_copy)), ForwardWork(body, (rows("b", 0, text),), ("last",)))
    engine = TorchEngine(decompose(llama_copy), block_tokens=4)
    first = ForwardWork(body, (rows("a", 0, other),), ("last",))
    second = ForwardWork(body, (rows("b", length, text[length:]),), ("last",), (), ("a",))
    copied = _logits_of(engine, first, second)
    assert torch.allclose(copied.float(), alone.float(), atol=2e-3)
    assert engine.cache.length("a", 0) == engine.cache.length("b", 0) == 40
    engine.drop("a", 0)
    assert torch.allclose(
        _logits_of(engine, ForwardWork(body, (rows("b", 39, text[39:]),), ("last",))).float(), alone.float(), atol=2e-3
    )


def test_a_copy_needs_no_more_blocks_than_the_batch_leaves(llama_copy):
    """A session that begins anew frees its blocks before another one's are copied."""
    engine = TorchEngine(decompose(llama_copy), block_tokens=4, budget_tokens=24)

    def rows(session, start, tokens):
        return SequenceSlice(session, start, len(tokens), tokens)

    for session, length in (("a", 8), ("b", 12)):
        engine.execute(ForwardWork(WHOLE, (rows(session, 0, tuple(range(5, 5 + length))),), ("last",)))
    again = rows("b", 0, (9, 9, 9, 9))
    engine.execute(ForwardWork(WHOLE, (rows("c", 8, (7, 7)), again), ("last", "last"), (), ("a", "")))
    assert [engine.cache.length(session, 0) for session in "abc"] == [8, 4, 10]


def test_a_copy_of_more_than_is_cached_is_refused(llama_copy):
    engine = TorchEngine(decompose(llama_copy))
    engine.execute(ForwardWork(WHOLE, (SequenceSlice("a", 0, 3, (5, 6, 7)),), ("last",)))
    for source, said in (("a", "'a' has 3 tokens cached, and 4 are to be copied"), ("c", "'c' has no cache")):
        with pytest.raises(CacheHoleError, match=said):
            engine.execute(ForwardWork(WHOLE, (SequenceSlice("b", 4, 1, (8,)),), ("last",), (), (source,)))


def test_work_beyond_the_end_of_a_cache_is_refused(llama_copy):
    engine = TorchEngine(decompose(llama_copy))
    engine.execute(DraftWork("a", 0, (5, 6, 7), DraftStopRule(0)))
    with pytest.raises(CacheHoleError, match="session 'a' begins at token 4, but only 3 tokens are cached"):
        engine.execute(DraftWork("a", 4, (8,), DraftStopRule(1)))
    with pytest.raises(CacheHoleError, match="session 'b' begins at token 1, but only 0"):
        engine.execute(ForwardWork(WHOLE, (SequenceSlice("b", 1, 1, (8,)),), ("last",)))


def test_wrong_settings_are_refused_by_name(llama_copy):
    model = decompose(llama_copy)
    with pytest.raises(ValueError, match="vocabulary is 98; the head of model has 97 rows"):
        TorchEngine(model, vocab_size=98)
    with pytest.raises(ValueError, match=r"probed layers are \[9\]; model has layers 0 to 3"):
        TorchEngine(model, importance_layers=frozenset({9}))


def test_a_session_goes_on_in_the_draft_cache_that_it_was_given(llama_copy):
    engine = TorchEngine(decompose(llama_copy))
    text, other = tuple(range(5, 25)), (*range(5, 17), 40, 41, 42)
    (alone, _), (first, _) = (engine.execute(DraftWork(name, 0, text, DraftStopRule(4))) for name in ("alone", "a"))
    assert first.tokens == alone.tokens
    engine.move("a", "b")
    assert (engine.cache.length("a", None), engine.cache.length("b", None)) == (len(text) + 3, 0)[::-1]
    moved, loads = engine.execute(DraftWork("b", 12, other[12:], DraftStopRule(4)))
    whole, _ = engine.execute(DraftWork("alone", 0, other, DraftStopRule(4)))
    assert moved.tokens == whole.tokens
    assert loads[0].num_tokens == 3
    engine.move("unknown", "c")
    with pytest.raises(CacheHoleError):
        engine.execute(DraftWork("c", 1, (5,), DraftStopRule(1)))


def test_a_draft_begins_with_a_copy_of_another_sessions_cache(llama_copy):
    engine = TorchEngine(decompose(llama_copy))
    text = tuple(range(5, 25))
    engine.execute(DraftWork("a", 0, text, DraftStopRule(4)))
    engine.copy("a", "b", 12)
    copied, loads = engine.execute(DraftWork("b", 12, (40, 41), DraftStopRule(4)))
    whole, _ = engine.execute(DraftWork("c", 0, (*text[:12], 40, 41), DraftStopRule(4)))
    assert copied.tokens == whole.tokens
    assert loads[0].num_tokens == 2
    assert engine.cache.length("a", None) == len(text) + 3


def test_a_targets_eviction_keeps_the_distributions_of_drafts_that_are_under_way(llama_copy):
    """The device sends them again after a cache miss; what another process sent comes again by itself."""
    store = TensorStore()
    engine = TorchEngine(decompose(llama_copy), tensor_store=store)
    work = DraftWork(
        "a", 0, (5, 6, 7), DraftStopRule(3), sampling=SamplingParams(0.8, 0, 1.0, 1), full_draft_probs=True
    )
    drafted, _ = engine.execute(work)
    store.add(TensorRef(f"device-0/{drafted.draft_probs[0].id}", 4), torch.zeros(1))
    engine.drop("a", 0)
    assert all(store.get(ref).numel() for ref in drafted.draft_probs)
    assert len(store) == len(drafted.draft_probs)
    engine.drop("a", None)
    assert len(store) == 0
