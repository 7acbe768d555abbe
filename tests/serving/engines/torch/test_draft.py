"""Draft work against `transformers`, stop rules, probes and branches."""

import copy
from dataclasses import replace
from math import prod

import pytest
import torch

from serving.core.keyed_random import key, uniform
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.engines.torch.sampling import expand_probs, sample_token
from serving.messages import DraftStopRule, DraftWork, EarlyExitRule, SamplingParams

VOCABULARY = 97
PROMPT = (5, 17, 40, 8, 23, 61, 9, 30, 77)


@pytest.fixture
def engine(llama):
    return TorchEngine(decompose(copy.deepcopy(llama)))


def _logits(causal, tokens):
    with torch.inference_mode():
        return causal(torch.tensor([tokens])).logits[0]


def _greedy(causal, prompt, n):
    out = causal.generate(torch.tensor([prompt]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)
    return tuple(out[0, len(prompt) :].tolist())


def _draft(engine, **settings):
    work = DraftWork(**{"session": "a", "start": 0, "input_tokens": PROMPT, "stop_rule": DraftStopRule(4), **settings})
    return engine.execute(work)[0]


def test_a_greedy_draft_is_the_models_continuation(engine, llama):
    drafted = _draft(engine, stop_rule=DraftStopRule(20))
    assert drafted.tokens == _greedy(llama, PROMPT, 20)
    assert drafted.cached_len == len(PROMPT) + 19
    assert not drafted.stopped


def test_a_draft_after_a_rollback_is_the_models_continuation(engine, llama):
    _draft(engine, stop_rule=DraftStopRule(20))
    drafted = _draft(engine, start=len(PROMPT), input_tokens=(44, 3), stop_rule=DraftStopRule(10))
    assert drafted.tokens == _greedy(llama, (*PROMPT, 44, 3), 10)


def test_the_product_of_scores_ends_a_draft_as_in_pieces(engine):
    """A piece is compared with what the pieces before it leave of the threshold."""
    whole = _draft(engine, stop_rule=DraftStopRule(8), requested_scores=("confidence",))
    paths = [prod(whole.scores["confidence"][: i + 1]) for i in range(8)]
    threshold = (paths[3] + paths[4]) / 2
    product = DraftStopRule(8, "confidence", threshold, product=True)
    drafted = _draft(engine, session="b", stop_rule=product)
    assert (drafted.tokens, drafted.stopped) == (whole.tokens[:5], True)
    left = replace(product, threshold=threshold / paths[1], keep_last=False)
    piece = _draft(
        engine, session="c", input_tokens=(*PROMPT, *whole.tokens[:2]), stop_rule=left, requested_scores=("confidence",)
    )
    assert (piece.tokens, piece.stopped) == (whole.tokens[2:4], True)


def test_a_draft_of_no_tokens_only_fills_the_cache(engine):
    drafted = _draft(engine, stop_rule=DraftStopRule(0), requested_scores=("confidence", "importance"))
    assert (drafted.tokens, drafted.top_candidates, drafted.cached_len) == ((), (), len(PROMPT))
    assert drafted.scores == {"confidence": (), "importance": ()}
    assert _draft(engine, start=4, input_tokens=(), stop_rule=DraftStopRule(0)).cached_len == 4


def test_filling_the_cache_scores_the_importance_of_adopted_drafts(engine):
    drafted = _draft(engine, stop_rule=DraftStopRule(4), requested_scores=("importance",))
    adopted = _draft(
        engine,
        start=len(PROMPT),
        input_tokens=drafted.tokens[:3],
        stop_rule=DraftStopRule(0),
        requested_scores=("importance",),
        num_adopted_drafts=4,
    )
    assert adopted.tokens == ()
    assert adopted.scores["importance"] == pytest.approx(drafted.scores["importance"], abs=1e-5)


def test_an_end_token_is_drafted_and_ends_the_draft(engine, llama):
    end = _greedy(llama, PROMPT, 3)[2]
    drafted = _draft(engine, stop_rule=DraftStopRule(20), stop_tokens=(end,))
    assert drafted.tokens[-1] == end
    assert drafted.tokens.index(end) == len(drafted.tokens) - 1
    assert not drafted.stopped


@pytest.mark.parametrize("keep", [True, False])
def test_the_first_score_below_the_threshold_stops_and_is_kept_or_dropped(engine, keep):
    free = _draft(engine, stop_rule=DraftStopRule(20), requested_scores=("confidence",))
    below = sorted(free.scores["confidence"])[8]
    first = next(i for i, score in enumerate(free.scores["confidence"]) if score < below)
    drafted = _draft(engine, stop_rule=DraftStopRule(20, "confidence", below, keep))
    assert drafted.stopped
    assert drafted.tokens == free.tokens[: first + keep]
    assert drafted.scores == {}
    assert drafted.cached_len == len(PROMPT) + first


def test_a_first_token_below_the_threshold_may_leave_an_empty_draft(engine):
    drafted = _draft(
        engine,
        stop_rule=DraftStopRule(4, "confidence", 1.1, keep_last=False),
        requested_scores=("importance", "confidence"),
    )
    assert (drafted.tokens, drafted.stopped, drafted.cached_len) == ((), True, len(PROMPT))
    assert drafted.scores == {"confidence": (), "importance": ()}


def test_scores_and_top_candidates_are_those_of_the_row_that_wrote_the_token(engine, llama):
    names = ("confidence", "margin", "entropy", "logit_std")
    drafted = _draft(engine, stop_rule=DraftStopRule(6), requested_scores=names)
    rows = _logits(llama, (*PROMPT, *drafted.tokens))[len(PROMPT) - 1 : -1].double()
    best = rows.softmax(-1).topk(3)
    assert drafted.top_candidates == tuple(map(tuple, best.indices.tolist()))
    want = {
        "confidence": best.values[:, 0],
        "margin": best.values[:, 0] - best.values[:, 1],
        "entropy": torch.distributions.Categorical(logits=rows).entropy(),
        "logit_std": rows.std(-1),
    }
    for name in names:
        assert drafted.scores[name] == pytest.approx(want[name].tolist(), abs=1e-4)


@pytest.mark.parametrize("sampling", [None, SamplingParams(1.0, 0, 1.0, 3)])
def test_branches_give_one_token_each_and_leave_no_cache(engine, llama, sampling):
    _draft(engine, stop_rule=DraftStopRule(0))
    branches, asked = ((11,), (12, 13, 14), (12, 50)), ("confidence", "importance")
    drafted = _draft(
        engine,
        start=7,
        input_tokens=(),
        branches=branches,
        stop_rule=DraftStopRule(1),
        requested_scores=asked,
        sampling=sampling,
    )
    alone = [
        _draft(engine, start=7, input_tokens=b, stop_rule=DraftStopRule(1), requested_scores=asked, sampling=sampling)
        for b in branches
    ]
    assert drafted.tokens == tuple(one.tokens[0] for one in alone)
    assert drafted.top_candidates == tuple(one.top_candidates[0] for one in alone)
    assert drafted.cached_len == 7
    assert [*drafted.scores] == ["confidence"]  # importance is what later rows pay, and there are none
    assert drafted.scores["confidence"] == pytest.approx([one.scores["confidence"][0] for one in alone], abs=1e-5)
    assert len(drafted.draft_probs) == len(drafted.probs_support) == (3 if sampling else 0)


def test_branches_ignore_the_stop_rule(engine):
    drafted = _draft(
        engine,
        input_tokens=(),
        branches=((11,), (12, 13)),
        stop_rule=DraftStopRule(1, "confidence", 1.1, keep_last=False),
    )
    assert len(drafted.tokens) == 2
    assert not drafted.stopped


@pytest.mark.parametrize("whole", [False, True])
def test_sampled_drafts_come_with_their_distributions(engine, whole):
    sampling = SamplingParams(0.8, 20, 0.95, seed=4)
    drafted = _draft(engine, stop_rule=DraftStopRule(8), sampling=sampling, full_draft_probs=whole)
    again = _draft(engine, stop_rule=DraftStopRule(3), sampling=sampling)
    assert again.tokens == drafted.tokens[:3]  # random numbers depend on the position, not on earlier draws
    for i, (token, blob) in enumerate(zip(drafted.tokens, drafted.draft_probs, strict=True)):
        odds = expand_probs(engine.tensor_store.get(blob), VOCABULARY)
        assert token == sample_token(odds, uniform(key(4, "a"), len(PROMPT) + i, "draft"))
        assert odds.dtype == torch.float16
        assert odds[token] > 0
        assert 0 < int((odds > 0).sum()) <= 20


def test_a_distribution_holds_only_drawable_tokens_unless_the_full_one_is_requested(engine):
    sampling = SamplingParams(0.8, 20, 0.95, seed=4)
    few, all_ = (
        _draft(engine, stop_rule=DraftStopRule(8), sampling=sampling, full_draft_probs=whole) for whole in (False, True)
    )
    assert few.tokens == all_.tokens
    assert [blob.nbytes for blob in few.draft_probs] == [4 * kept for kept in few.probs_support]
    assert all(0 < kept <= 20 for kept in few.probs_support)
    assert ([blob.nbytes for blob in all_.draft_probs], all_.probs_support) == ([2 * VOCABULARY] * 8, (0,) * 8)
    for short, long in zip(few.draft_probs, all_.draft_probs, strict=True):
        assert torch.equal(expand_probs(engine.tensor_store.get(short), VOCABULARY), engine.tensor_store.get(long))


def test_greedy_drafts_come_with_a_distribution_only_on_request(engine, llama):
    plain, whole = (_draft(engine, stop_rule=DraftStopRule(5), full_draft_probs=wanted) for wanted in (False, True))
    assert (plain.draft_probs, plain.probs_support) == ((), ())
    assert whole.tokens == plain.tokens
    assert whole.probs_support == (0,) * 5
    rows = _logits(llama, (*PROMPT, *whole.tokens))[len(PROMPT) - 1 : -1].softmax(-1)
    for row, blob in zip(rows, whole.draft_probs, strict=True):
        torch.testing.assert_close(engine.tensor_store.get(blob).float(), row, atol=1e-3, rtol=1e-3)


def test_a_distribution_has_the_bytes_of_its_tensor(engine):
    for top_k in (1, 20, 48, 49, 60):
        drafted = _draft(engine, stop_rule=DraftStopRule(3), sampling=SamplingParams(1.0, top_k, 1.0, seed=4))
        assert drafted.probs_support == (top_k if top_k <= 48 else 0,) * 3
        assert [blob.nbytes for blob in drafted.draft_probs] == [
            engine.tensor_store.get(blob).nbytes for blob in drafted.draft_probs
        ]


def test_sessions_and_seeds_draw_different_tokens(engine):
    def written(session, seed):
        return _draft(
            engine, session=session, stop_rule=DraftStopRule(12), sampling=SamplingParams(1.0, 0, 1.0, seed)
        ).tokens

    assert len({written("a", 1), written("b", 1), written("a", 2)}) == 3


def test_incomplete_draft_work_is_refused(engine):
    with pytest.raises(ValueError, match="asks for 4 tokens with nothing to feed"):
        _draft(engine, input_tokens=())
    with pytest.raises(ValueError, match="a branch without tokens"):
        _draft(engine, input_tokens=(), branches=((),))
    with pytest.raises(ValueError, match="score 'boldness' is not known; choose among confidence"):
        _draft(engine, requested_scores=("boldness",))
    with pytest.raises(ValueError, match="score 'importance' is not known"):
        _draft(engine, stop_rule=DraftStopRule(4, "importance", 0.5))
    with pytest.raises(ValueError, match="score 'boldness' is not known"):
        _draft(engine, early_exit=EarlyExitRule("boldness", 0.7, 0.25))
