"""Drafts with early exit: their tokens, scores and cost; all else is as without exits."""

import copy
from itertools import accumulate

import pytest
import torch

from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache
from serving.messages import DraftStopRule, DraftWork, EarlyExitRule, SamplingParams

PROMPT = (5, 17, 40, 8, 23, 61, 9, 30, 77)
LAYERS = 4
NEVER, AT_ONCE = EarlyExitRule("margin", 1.0, 0.75), EarlyExitRule("margin", -1.0, 0.75)
SCORES = ("confidence", "margin", "importance")


@pytest.fixture
def engine(llama):
    return TorchEngine(decompose(copy.deepcopy(llama)))


def draft(engine, feed=PROMPT, cap=6, rule=None, session="a", start=0, probes=SCORES, **settings):
    return engine.execute(
        DraftWork(session, start, tuple(feed), DraftStopRule(cap), requested_scores=probes, early_exit=rule, **settings)
    )


def sometimes(engine):
    """A rule that some of the tokens of a free draft pass at some of the layers, and some at none."""
    tokens = draft(engine, cap=16, session="free")[0].tokens
    text = [*PROMPT, *tokens]
    margins = sorted(margin(engine, text[:at], depth) for at in range(9, 25) for depth in (1, 2, 3))
    return EarlyExitRule("margin", margins[len(margins) * 3 // 4], 0.75)


@torch.inference_mode()
def reading(engine, text, depth):
    """The probabilities of the next token after `depth` layers, without any cache."""
    stack = ModelRunner(engine.model, engine.model.vocab_size)
    slot = SequenceCache(engine.model, 0, LAYERS)
    hidden = stack.run(stack.embed(text), [RunnerInput(slot, len(text))], 0, depth)
    return stack.logits(hidden[-1:])[0].softmax(-1)


def margin(engine, text, depth):
    best = reading(engine, text, depth).topk(2).values
    return float(best[0] - best[1])


def check(engine, rule, text, token, depth, confidence):
    """Is this the token, and the first layer that was sure enough of it?"""
    ran = round(depth * LAYERS)
    odds = reading(engine, text, ran)
    assert token == int(odds.argmax())
    assert confidence == pytest.approx(float(odds.max()), abs=1e-4)
    before = [margin(engine, text, layer) for layer in rule.check_layers(LAYERS) if layer < ran]
    assert all(value <= rule.threshold + 1e-5 for value in before)
    assert ran == LAYERS or margin(engine, text, ran) > rule.threshold - 1e-5


@pytest.mark.parametrize("sampling", [None, SamplingParams(0.9, 20, 0.95, 3)])
def test_an_exit_threshold_that_no_token_passes_changes_nothing(engine, sampling):
    free, _ = draft(engine, sampling=sampling)
    with_checks, _ = draft(engine, rule=NEVER, session="a", sampling=sampling)
    assert (with_checks.tokens, with_checks.top_candidates, with_checks.cached_len) == (
        free.tokens,
        free.top_candidates,
        free.cached_len,
    )
    for name in ("confidence", "margin"):
        assert with_checks.scores[name] == pytest.approx(free.scores[name], abs=1e-5)
    assert (free.exit_depths, with_checks.exit_depths) == ((), (1.0,) * 6)


def test_an_exit_threshold_that_every_token_passes_exits_at_the_first_check(engine):
    drafted, loads = draft(engine, rule=AT_ONCE)
    assert drafted.exit_depths == (0.25,) * 6
    for at in range(6):
        text = (*PROMPT, *drafted.tokens[:at])
        check(engine, AT_ONCE, text, drafted.tokens[at], 0.25, drafted.scores["confidence"][at])
    assert [(one.layers, one.num_tokens, one.head_tokens) for one in loads] == [(1, 9, 1)] + [(1, 1, 1)] * 5


@pytest.mark.parametrize("variant", ["llama", "qwen2_mixed", "qwen3", "mistral", "phi3", "neox"])
def test_each_token_exits_at_the_first_confident_check_after_any_rollback(causal, variant):
    engine = TorchEngine(decompose(causal(variant)))
    rule, text, cached = sometimes(engine), list(PROMPT), 0
    seen = set()
    turns: list = [(6, 6, ()), (5, 2, (11,)), (4, 0, (12, 13)), (5, 5, (14,)), (6, 1, (3,))]
    for turn, (cap, kept, more) in enumerate(turns):
        drafted, _ = draft(engine, text[cached:], cap, rule, start=cached)
        for at, token in enumerate(drafted.tokens):
            check(
                engine,
                rule,
                [*text, *drafted.tokens[:at]],
                token,
                drafted.exit_depths[at],
                drafted.scores["confidence"][at],
            )
        seen |= set(drafted.exit_depths)
        length = len(text)
        text += [*drafted.tokens[:kept], *more]
        cached = min(drafted.cached_len, length + kept, len(text) - 1) - turn % 2  # one token fed anew
    assert len(seen) > 1
    assert 1.0 in seen


def test_branches_with_suspended_tokens_exit_one_by_one(engine):
    rule = sometimes(engine)
    drafted, _ = draft(engine, cap=4, rule=AT_ONCE)
    text = (*PROMPT, *drafted.tokens)
    start = drafted.cached_len - 1
    assert engine.cache.open("a", None, LAYERS, start).exit_depths.num_incomplete == start
    branches = tuple((*text[start:], *own) for own in ((), (11,), (12, 13, 14), (12, 50), (60,), (61, 62)))
    ahead, loads = draft(engine, (), 1, rule, start=start, branches=branches)
    for own, token, depth, confidence in zip(
        branches, ahead.tokens, ahead.exit_depths, ahead.scores["confidence"], strict=True
    ):
        check(engine, rule, (*text[:start], *own), token, depth, confidence)
    assert len(set(ahead.exit_depths)) > 1
    assert ahead.cached_len == start
    deepest = max(round(depth * LAYERS) for depth in ahead.exit_depths)
    checks = len([layer for layer in (*rule.check_layers(LAYERS), LAYERS) if layer <= deepest])
    assert sum(one.head_tokens for one in loads) == checks * len(branches)
    after, _ = draft(engine, text[start:], 4, NEVER, start=start)
    assert after.tokens == draft(engine, text, 4, session="b")[0].tokens


@pytest.mark.parametrize(
    "rule", [NEVER, AT_ONCE, EarlyExitRule("margin", 0.4, 0.5), EarlyExitRule("confidence", 0.5, 0.5, 1)]
)
def test_computed_layers_are_those_of_the_reported_load(llama, rule):
    """Layers and head are counted from outside, over a draft, a rollback, a fill and branches."""
    engine = TorchEngine(decompose(copy.deepcopy(llama)))
    ran, asked = [0] * LAYERS, [0]
    for i, layer in enumerate(engine.model.layers):
        layer.register_forward_pre_hook(lambda _, args, i=i: ran.__setitem__(i, ran[i] + args[0].shape[1]))
    engine.model.lm_head.register_forward_pre_hook(lambda _, args: asked.__setitem__(0, asked[0] + args[0].shape[0]))
    works = [
        DraftWork("a", 0, PROMPT, DraftStopRule(5), early_exit=rule),
        DraftWork("a", 11, (50, 51), DraftStopRule(3), early_exit=rule),
        DraftWork("a", 12, (), DraftStopRule(1), early_exit=rule, branches=((51, 3), (51, 4, 5))),
        DraftWork("a", 12, (51, 3), DraftStopRule(0), early_exit=rule),
        DraftWork("a", 14, (7,), DraftStopRule(2), early_exit=rule),
    ]
    loads = [load for work in works for load in engine.execute(work)[1]]
    assert sum(one.layers * one.num_tokens for one in loads) == sum(ran)
    assert sum(one.head_tokens for one in loads) == asked[0]
    assert ran == sorted(ran, reverse=True)
    assert engine.cache.length("a", None) == 16


def test_skipped_layers_are_not_computed(llama):
    engine = TorchEngine(decompose(copy.deepcopy(llama)))
    ran = [0] * LAYERS
    for i, layer in enumerate(engine.model.layers):
        layer.register_forward_pre_hook(lambda _, args, i=i: ran.__setitem__(i, ran[i] + args[0].shape[1]))
    draft(engine, cap=6, rule=EarlyExitRule("margin", -1.0, 0.5))
    assert ran == [14, 14, 0, 0]
    draft(engine, (3,), 1, EarlyExitRule("margin", 1.0, 0.5), start=14)
    assert ran == [15, 15, 15, 15]  # everyone once


def test_one_exit_check_runs_the_head_once(engine):
    _, loads = draft(engine, cap=3, rule=EarlyExitRule("margin", 1.0, 0.75, max_checks=1))
    assert sum(one.head_tokens for one in loads) == 3 * 2
    _, loads = draft(engine, cap=3, rule=EarlyExitRule("margin", 1.0, 0.75))
    assert sum(one.head_tokens for one in loads) == 3 * 4


@pytest.mark.parametrize(
    ("last", "checks", "depth", "layers"),
    [
        (0.25, 0, 32, tuple(range(24, 32))),
        (0.25, 1, 32, (24,)),
        (0.25, 3, 32, (24, 25, 26)),
        (0.25, 99, 22, tuple(range(17, 22))),
        (0.3, 0, 10, (7, 8, 9)),
        (0.25, 0, 4, (3,)),
        (0.99, 0, 4, (1, 2, 3)),
        (0.25, 0, 1, ()),
    ],
)
def test_check_layers_are_spaced_as_the_rule_says(last, checks, depth, layers):
    assert EarlyExitRule("margin", 0.7, last, checks).check_layers(depth) == layers


def test_importance_depends_on_the_text_and_not_on_exits(engine):
    """Importance is read in layers that always run: here the first, below every check."""
    early, _ = draft(engine, cap=5, rule=AT_ONCE)
    seen, _ = draft(engine, (*PROMPT, *early.tokens[:-1]), 0, NEVER, "b", num_adopted_drafts=5)
    assert seen.scores["importance"] == pytest.approx(early.scores["importance"], abs=1e-5)
    assert TorchEngine(engine.model, importance_layers=frozenset({0})).execute(
        DraftWork(
            "c",
            0,
            (*PROMPT, *early.tokens[:-1]),
            DraftStopRule(0),
            requested_scores=("importance",),
            num_adopted_drafts=5,
        )
    )[0].scores["importance"] == pytest.approx(early.scores["importance"], abs=1e-5)


@pytest.mark.parametrize("rule", [None, AT_ONCE])
@pytest.mark.parametrize(("again", "more"), [(1, 0), (1, 1), (1, 3), (3, 0), (3, 1), (3, 3), (5, 0), (8, 2)])
def test_importance_of_adopted_drafts_equals_that_of_drafting_them(engine, rule, again, more):
    """Seen by one fill, or with the next drafts: the same numbers as in one go."""
    whole, _ = draft(engine, cap=again + more, rule=rule)
    written = whole.tokens[:again]
    feed = (*PROMPT, *(written if more else written[:-1]))
    got, _ = draft(engine, feed, more, rule, "b", num_adopted_drafts=again)
    assert got.tokens == whole.tokens[again:]
    assert got.scores["importance"] == pytest.approx(whole.scores["importance"], abs=1e-5)
    assert [len(got.scores[name]) for name in SCORES] == [more, more, again + more]


def test_importance_of_adopted_drafts_does_not_depend_on_the_cached_prefix(engine):
    whole, _ = draft(engine, cap=5)
    for cached in accumulate((3, 4, 2)):
        draft(engine, PROMPT[:cached], 0, session="b")
        got, _ = draft(
            engine, (*PROMPT[cached:], *whole.tokens[:3]), 2, session="b", start=cached, num_adopted_drafts=3
        )
        assert got.scores["importance"] == pytest.approx(whole.scores["importance"], abs=1e-5)
        engine.drop("b", None)


def test_adopted_drafts_may_be_followed_by_an_immediate_stop(engine):
    got, _ = engine.execute(
        DraftWork(
            "a",
            0,
            (*PROMPT, 11, 12),
            DraftStopRule(4, "confidence", 1.1, keep_last=False),
            requested_scores=("importance",),
            num_adopted_drafts=2,
        )
    )
    alone, _ = draft(engine, (*PROMPT, 11), 0, session="b", num_adopted_drafts=2)
    assert got.tokens == ()
    assert got.scores["importance"] == pytest.approx(alone.scores["importance"], abs=1e-5)
