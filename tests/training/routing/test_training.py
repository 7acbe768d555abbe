"""A router learns preferences that hidden states tell, and its threshold is that of its share."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from serving.learned.mlp import NumpyMLP
from serving.learned.router import TokenRouter
from serving.progress import silent
from training.fitting.recipe import CoLLMRecipe
from training.fitting.trainer import Trainer
from training.routing import citer
from training.routing.co_llm import CoLLMTraining, marginal_nll, weak_labels
from training.routing.states import PREFERENCE_REASONS, RoutingStates, concatenate, split
from training.wisp.mlp import MLP


def told(texts: int = 120, seed: int = 0) -> RoutingStates:
    """Two states a text; where the first number of the hidden state is above 1 only the large model is right."""
    draw = np.random.default_rng(seed)
    n = 2 * texts
    hidden = draw.normal(size=(n, 4)).astype(np.float32)
    hard = hidden[:, 0] > 1
    return RoutingStates(
        hidden=hidden, small_preferred=~hard, reason=hard.astype(np.uint8), reference_token=np.full(n, 5, np.int32),
        small_logprobs=np.where(hard, np.log(0.01), np.log(0.9)).astype(np.float32),
        large_logprobs=np.full(n, np.log(0.8), np.float32), text_index=np.repeat(np.arange(texts), 2).astype(np.int32),
        tokens=np.zeros(4 * texts, np.int32), text_ends=4 * np.arange(1, texts + 1), prompt_lens=np.full(texts, 2),
        prompt_ids=tuple(f"p{i}" for i in range(texts)),
    )  # fmt: skip


def trained(rounds: list[RoutingStates], mlp: MLP, share: float, trainer: Trainer) -> TokenRouter:
    """As the stage does it."""
    return citer.train(split(concatenate(rounds).with_preference(), 0), rounds[-1], mlp, share, 0, trainer, silent)


def test_citer_learns_which_states_are_the_large_models(one_thread: Trainer) -> None:
    mlp = MLP(hidden_sizes=(16,), dropout=0.0, learning_rate=1e-2, epochs=30)
    router = trained([told()], mlp, 0.15, one_thread)
    hidden = np.array([[2.5, 0, 0, 0], [-1, 0, 0, 0]], np.float32)
    assert (router.side, router.family) == ("below", "citer")
    assert [router.routes(router.probability(row)) for row in hidden] == [True, False]
    assert router.metrics["test"]["auc"] > 0.9
    assert sum(router.routes(score) for score in router.heldout_scores) == round(0.15 * len(router.heldout_scores))


def test_training_uses_all_rounds_and_takes_its_threshold_from_the_last(one_thread: Trainer) -> None:
    """Its states are learned from, and it is the one that the threshold is taken from."""
    mlp = MLP(hidden_sizes=(8,), dropout=0.0, epochs=2)
    first, later = told(80), told(80, seed=1)
    one, both = (trained(rounds, mlp, 0.2, one_thread) for rounds in ([first], [first, later]))
    assert one.digest != both.digest
    held_out = later.for_prompts(split(concatenate([first, later]), 0).validation.used_prompt_ids)
    assert both.heldout_scores == tuple(sorted(both.probabilities(held_out.hidden).tolist()))


def test_nearly_certain_scores_stay_distinct() -> None:
    """A share names a threshold among them, so none may be rounded away."""
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    sure = NumpyMLP(((one[None], 14 * one),), zero, one)
    states = told(50)
    narrow = replace(states, hidden=np.linspace(0, 3, len(states), dtype=np.float32)[:, None])
    router = citer.build_router(sure, "citer", "below", narrow, narrow, 0.3, {})
    scores = router.probabilities(narrow.hidden)
    assert min(scores) > 0.999999
    assert sum(router.routes(score) for score in scores.tolist()) == 30


def test_citer_ignores_states_without_preference(one_thread: Trainer) -> None:
    states = told(80)
    states.reason[::7] = PREFERENCE_REASONS.index("unasked")
    altered = replace(
        states,
        small_preferred=np.where(states.reason == PREFERENCE_REASONS.index("unasked"), False, states.small_preferred),
    )
    mlp = MLP(hidden_sizes=(8,), dropout=0.0, epochs=2)
    one, other = (trained([each], mlp, 0.2, one_thread) for each in (states, altered))
    assert one.digest == other.digest


def test_the_threshold_is_that_of_all_held_out_states(one_thread: Trainer) -> None:
    """A router that serves meets states whose preference nobody asked for; where these are the hard ones, the share of
    the others is too small.
    """
    states = told(120)
    hard = np.flatnonzero(~states.small_preferred)
    states.reason[hard[::2]] = PREFERENCE_REASONS.index("unasked")
    router = trained([states], MLP(hidden_sizes=(8,), dropout=0.0, epochs=2), 0.2, one_thread)
    parts = split(states.with_preference(), 0)
    held_out = states.for_prompts(parts.validation.used_prompt_ids)
    assert len(held_out) > len(parts.validation)
    scores = router.probabilities(held_out.hidden).tolist()
    assert router.heldout_scores == tuple(sorted(scores))
    assert sum(router.routes(score) for score in scores) == round(0.2 * len(scores))
    assert router.metrics["test"]["states"] == len(parts.test)


def test_the_marginal_likelihood_of_known_probabilities() -> None:
    logit, small, large = (
        torch.tensor([0.0, 2.0]),
        torch.log(torch.tensor([0.2, 0.5])),
        torch.log(torch.tensor([0.6, 0.1])),
    )
    p = 1 / (1 + np.exp(-2.0))
    expected = [-np.log(0.5 * 0.2 + 0.5 * 0.6), -np.log((1 - p) * 0.5 + p * 0.1)]
    assert marginal_nll(logit, small, large).tolist() == pytest.approx(expected, rel=1e-5)
    assert weak_labels(small, large).tolist() == [1.0, 0.0]


def test_the_marginal_likelihood_of_certain_deferral_is_the_large_models() -> None:
    small, large = torch.tensor([-3.0]), torch.tensor([-0.5])
    assert marginal_nll(torch.tensor([40.0]), small, large).item() == pytest.approx(0.5)
    assert marginal_nll(torch.tensor([-40.0]), small, large).item() == pytest.approx(3.0)


def test_co_llm_defers_where_the_large_model_predicts_better(one_thread: Trainer) -> None:
    router = CoLLMTraining(CoLLMRecipe(epochs=30, batch_size=32), 0.15, 0, one_thread, silent).train_frozen(
        split(told().with_reference(), 0)
    )
    hidden = np.array([[3.0, 0, 0, 0], [-2, 0, 0, 0]], np.float32)
    assert (router.side, router.family, router.hidden_widths) == ("above", "co_llm", "linear")
    assert [router.routes(router.probability(row)) for row in hidden] == [True, False]
    assert {"weak", "marginal"} <= set(router.metrics)


def test_co_llm_ignores_states_without_a_reference(one_thread: Trainer) -> None:
    states = told(60)
    states.reference_token[1::2] = -1
    altered = replace(
        states, small_logprobs=np.where(states.reference_token < 0, 9.9, states.small_logprobs).astype(np.float32)
    )
    brief = CoLLMTraining(CoLLMRecipe(epochs=2, batch_size=16), 0.15, 0, one_thread, silent)
    assert len({brief.train_frozen(split(each.with_reference(), 0)).digest for each in (states, altered)}) == 1


def test_co_llm_keeps_the_weights_of_its_best_epoch(one_thread: Trainer) -> None:
    """At so high a learning rate the last epoch is not the best."""
    parts = split(told(), 0)
    recipe = CoLLMRecipe(epochs=12, batch_size=16, learning_rate=2.0, patience=12)
    router = CoLLMTraining(recipe, 0.15, 0, one_thread, silent).train_frozen(parts)
    marginal = router.metrics["marginal"]
    assert marginal["best_epoch"] < marginal["epochs"]
    held_out = parts.validation
    odds = torch.logit(torch.from_numpy(router.probabilities(held_out.hidden)), eps=1e-12)
    logprobs = [torch.from_numpy(each) for each in (held_out.small_logprobs, held_out.large_logprobs)]
    assert marginal_nll(odds, *logprobs).mean().item() == pytest.approx(min(marginal["validation_losses"]), abs=1e-3)
