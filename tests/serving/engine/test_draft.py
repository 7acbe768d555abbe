"""Draft work against `transformers`, stop rules, probes and branches."""

import copy

import pytest
import torch

from serving.core.keyed_random import key, luck
from serving.engines.torch.engine import Engine
from serving.engines.torch.model import take_apart
from serving.engines.torch.sampling import draw, opened
from serving.messages import Exit, Generate, Sampling, Stop

VOCABULARY = 97
PROMPT = (5, 17, 40, 8, 23, 61, 9, 30, 77)


@pytest.fixture
def engine(llama):
    return Engine(take_apart(copy.deepcopy(llama)))


def _logits(causal, tokens):
    with torch.inference_mode():
        return causal(torch.tensor([tokens])).logits[0]


def _greedy(causal, prompt, n):
    out = causal.generate(torch.tensor([prompt]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)
    return tuple(out[0, len(prompt) :].tolist())


def _draft(engine, **settings):
    work = Generate(**{"session": "a", "start": 0, "feed": PROMPT, "stop": Stop(4), **settings})
    return engine.execute(work)[0]


def test_a_draft_is_the_models_own_continuation(engine, llama):
    drafted = _draft(engine, stop=Stop(20))
    assert drafted.tokens == _greedy(llama, PROMPT, 20)
    assert drafted.cached == len(PROMPT) + 19
    assert not drafted.stopped


def test_after_a_rollback_another_continuation_is_right_too(engine, llama):
    _draft(engine, stop=Stop(20))
    drafted = _draft(engine, start=len(PROMPT), feed=(44, 3), stop=Stop(10))
    assert drafted.tokens == _greedy(llama, (*PROMPT, 44, 3), 10)


def test_feeding_without_a_cap_only_fills_the_cache(engine):
    drafted = _draft(engine, stop=Stop(0), probes=("confidence", "importance"))
    assert (drafted.tokens, drafted.tops, drafted.cached) == ((), (), len(PROMPT))
    assert drafted.scores == {"confidence": (), "importance": ()}
    assert _draft(engine, start=4, feed=(), stop=Stop(0)).cached == 4


def test_a_fill_tells_the_importance_of_drafts_that_were_written_before(engine):
    drafted = _draft(engine, stop=Stop(4), probes=("importance",))
    adopted = _draft(engine, start=len(PROMPT), feed=drafted.tokens[:3], stop=Stop(0), probes=("importance",), again=4)
    assert adopted.tokens == ()
    assert adopted.scores["importance"] == pytest.approx(drafted.scores["importance"], abs=1e-5)


def test_an_end_token_is_drafted_and_ends_the_draft(engine, llama):
    end = _greedy(llama, PROMPT, 3)[2]
    drafted = _draft(engine, stop=Stop(20), ends=(end,))
    assert drafted.tokens[-1] == end
    assert drafted.tokens.index(end) == len(drafted.tokens) - 1
    assert not drafted.stopped


@pytest.mark.parametrize("keep", [True, False])
def test_the_first_score_below_the_threshold_stops_and_is_kept_or_dropped(engine, keep):
    free = _draft(engine, stop=Stop(20), probes=("confidence",))
    below = sorted(free.scores["confidence"])[8]
    first = next(i for i, score in enumerate(free.scores["confidence"]) if score < below)
    drafted = _draft(engine, stop=Stop(20, "confidence", below, keep))
    assert drafted.stopped
    assert drafted.tokens == free.tokens[: first + keep]
    assert drafted.scores == {}
    assert drafted.cached == len(PROMPT) + first


def test_a_first_token_below_the_threshold_may_leave_an_empty_draft(engine):
    drafted = _draft(engine, stop=Stop(4, "confidence", 1.1, keep=False), probes=("importance", "confidence"))
    assert (drafted.tokens, drafted.stopped, drafted.cached) == ((), True, len(PROMPT))
    assert drafted.scores == {"confidence": (), "importance": ()}


def test_scores_and_tops_are_those_of_the_row_that_wrote_the_token(engine, llama):
    names = ("confidence", "margin", "entropy", "logit_std")
    drafted = _draft(engine, stop=Stop(6), probes=names)
    rows = _logits(llama, (*PROMPT, *drafted.tokens))[len(PROMPT) - 1 : -1].double()
    best = rows.softmax(-1).topk(3)
    assert drafted.tops == tuple(map(tuple, best.indices.tolist()))
    want = {
        "confidence": best.values[:, 0],
        "margin": best.values[:, 0] - best.values[:, 1],
        "entropy": torch.distributions.Categorical(logits=rows).entropy(),
        "logit_std": rows.std(-1),
    }
    for name in names:
        assert drafted.scores[name] == pytest.approx(want[name].tolist(), abs=1e-4)


@pytest.mark.parametrize("sampling", [None, Sampling(1.0, 0, 1.0, 3)])
def test_branches_give_one_token_each_and_leave_no_cache(engine, llama, sampling):
    _draft(engine, stop=Stop(0))
    branches, asked = ((11,), (12, 13, 14), (12, 50)), ("confidence", "importance")
    drafted = _draft(engine, start=7, feed=(), branches=branches, stop=Stop(1), probes=asked, sampling=sampling)
    alone = [_draft(engine, start=7, feed=b, stop=Stop(1), probes=asked, sampling=sampling) for b in branches]
    assert drafted.tokens == tuple(one.tokens[0] for one in alone)
    assert drafted.tops == tuple(one.tops[0] for one in alone)
    assert drafted.cached == 7
    assert [*drafted.scores] == ["confidence"]  # importance is what later rows pay, and there are none
    assert drafted.scores["confidence"] == pytest.approx([one.scores["confidence"][0] for one in alone], abs=1e-5)
    assert len(drafted.odds) == len(drafted.kept) == (3 if sampling else 0)


def test_branches_know_no_stop_rule(engine):
    drafted = _draft(engine, feed=(), branches=((11,), (12, 13)), stop=Stop(1, "confidence", 1.1, keep=False))
    assert len(drafted.tokens) == 2
    assert not drafted.stopped


@pytest.mark.parametrize("whole", [False, True])
def test_drafted_samples_come_with_the_distribution_they_were_drawn_from(engine, whole):
    sampling = Sampling(0.8, 20, 0.95, seed=4)
    drafted = _draft(engine, stop=Stop(8), sampling=sampling, whole=whole)
    again = _draft(engine, stop=Stop(3), sampling=sampling)
    assert again.tokens == drafted.tokens[:3]  # luck is named by position, not by how often it was asked
    for i, (token, blob) in enumerate(zip(drafted.tokens, drafted.odds, strict=True)):
        odds = opened(engine.blobs.get(blob), VOCABULARY)
        assert token == draw(odds, luck(key(4, "a"), len(PROMPT) + i, "draft"))
        assert odds.dtype == torch.float16
        assert odds[token] > 0
        assert 0 < int((odds > 0).sum()) <= 20


def test_a_distribution_names_what_could_have_been_drawn_unless_all_is_wanted(engine):
    sampling = Sampling(0.8, 20, 0.95, seed=4)
    few, all_ = (_draft(engine, stop=Stop(8), sampling=sampling, whole=whole) for whole in (False, True))
    assert few.tokens == all_.tokens
    assert [blob.nbytes for blob in few.odds] == [4 * kept for kept in few.kept]
    assert all(0 < kept <= 20 for kept in few.kept)
    assert ([blob.nbytes for blob in all_.odds], all_.kept) == ([2 * VOCABULARY] * 8, (0,) * 8)
    for short, long in zip(few.odds, all_.odds, strict=True):
        assert torch.equal(opened(engine.blobs.get(short), VOCABULARY), engine.blobs.get(long))


def test_greedy_drafts_come_with_a_distribution_only_if_it_is_wanted(engine, llama):
    plain, whole = (_draft(engine, stop=Stop(5), whole=wanted) for wanted in (False, True))
    assert (plain.odds, plain.kept) == ((), ())
    assert whole.tokens == plain.tokens
    assert whole.kept == (0,) * 5
    rows = _logits(llama, (*PROMPT, *whole.tokens))[len(PROMPT) - 1 : -1].softmax(-1)
    for row, blob in zip(rows, whole.odds, strict=True):
        torch.testing.assert_close(engine.blobs.get(blob).float(), row, atol=1e-3, rtol=1e-3)


def test_a_distribution_weighs_what_its_tensor_weighs(engine):
    for top_k in (1, 20, 48, 49, 60):
        drafted = _draft(engine, stop=Stop(3), sampling=Sampling(1.0, top_k, 1.0, seed=4))
        assert drafted.kept == (top_k if top_k <= 48 else 0,) * 3
        assert [blob.nbytes for blob in drafted.odds] == [engine.blobs.get(blob).nbytes for blob in drafted.odds]


def test_other_sessions_and_seeds_have_other_luck(engine):
    def written(session, seed):
        return _draft(engine, session=session, stop=Stop(12), sampling=Sampling(1.0, 0, 1.0, seed)).tokens

    assert len({written("a", 1), written("b", 1), written("a", 2)}) == 3


def test_work_that_says_too_little_is_refused(engine):
    with pytest.raises(ValueError, match="asks for 4 tokens with nothing to feed"):
        _draft(engine, feed=())
    with pytest.raises(ValueError, match="a branch without tokens"):
        _draft(engine, feed=(), branches=((),))
    with pytest.raises(ValueError, match="score 'boldness' is not known; choose among confidence"):
        _draft(engine, probes=("boldness",))
    with pytest.raises(ValueError, match="score 'importance' is not known"):
        _draft(engine, stop=Stop(4, "importance", 0.5))
    with pytest.raises(ValueError, match="score 'boldness' is not known"):
        _draft(engine, exit=Exit("boldness", 0.7, 0.25))
