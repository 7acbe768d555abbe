"""Sampled outcomes: the configured acceptance rate, draws that do not depend on the policy, and an engine's loads."""

from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import Any

import pytest

from serving.core.decoding import Decoding
from serving.deployment.queries import Query
from serving.hardware.latency import batch_load
from serving.messages import (
    DraftBatch,
    DraftBatchOutcome,
    DraftStopRule,
    DraftWork,
    EarlyExitRule,
    ForwardWork,
    SamplingParams,
    SequenceSlice,
    Span,
)
from serving.outcomes.acceptance_draws import AcceptanceDraws, MatchProbabilities
from serving.outcomes.constant import ConstantAcceptance
from serving.outcomes.outcomes import OutcomeEngines
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.early_exit import LayerwiseExit, SequencewiseExit
from serving.policy.slots.payload import FullDistributionPayload, TokenPayload
from serving.runtimes.emulated import simulate
from serving.workload.prompt import Prompt
from serving.workload.workload import WorkloadRequest
from tests.support.fake_setup import setup

WHOLE = Span(0, 32, embedding=True, lm_head=True)


def asked(n: int, limit: int = 40, devices: int = 2) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(i, Prompt(f"p{i}", "", (), ""), i % devices, i, None, 0.0, 99, limit, None) for i in range(n)
    ]


def opened(n: int = 1, seed: int = 0, **how: Any) -> tuple[list[Query], OutcomeEngines]:
    outcomes = ConstantAcceptance(**({"prompt_tokens": 10} | how))
    queries = outcomes.make_queries(asked(n), Decoding(), seed)
    return queries, outcomes.open(queries, setup("sled").policy, seed)


def test_prompts_are_cut_at_the_workloads_limit() -> None:
    requests = [replace(one, max_prompt_tokens=limit) for one, limit in zip(asked(2), (16, 40), strict=True)]
    cut, whole = ConstantAcceptance(prompt_tokens=40).make_queries(requests, Decoding(), 0)
    assert (len(cut.request.prompt), cut.num_cut) == (16, 24)
    assert (len(whole.request.prompt), whole.num_cut) == (40, 0)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
def test_drafts_are_accepted_at_the_configured_rate(rate: float) -> None:
    limits, sessions = (
        MatchProbabilities(rate, rate, rate).thresholds,
        [AcceptanceDraws(0, f"s{i}", 7) for i in range(60)],
    )
    right = sum(rights.num_accepted(7 + at, 1, limits) for rights in sessions for at in range(200))
    assert abs(right - 12000 * rate) <= 4 * sqrt(12000 * rate * (1 - rate))


def test_acceptance_lengths_are_geometric() -> None:
    limits = MatchProbabilities(0.7, 0.7, 0.7).thresholds
    runs = [AcceptanceDraws(1, f"s{i}", 0).num_accepted(0, 4, limits) for i in range(8000)]
    for n, share in enumerate((0.3, 0.21, 0.147, 0.1029, 0.2401)):
        assert abs(runs.count(n) - 8000 * share) <= 4 * sqrt(8000 * share * (1 - share))


def test_acceptance_depends_on_the_previous_draft() -> None:
    limits = MatchProbabilities(1.0, 0.9, 0.2).thresholds
    steps = []
    for i in range(200):
        rights = AcceptanceDraws(2, f"s{i}", 0)
        drawn = [rights.num_accepted(at, 1, limits) for at in range(60)]
        assert drawn[0] == 1
        steps += list(pairwise(drawn))
    for before, share in ((1, 0.9), (0, 0.2)):
        after = [b for a, b in steps if a == before]
        assert abs(sum(after) - len(after) * share) <= 4 * sqrt(len(after) * share * (1 - share))


def test_acceptance_draws_do_not_depend_on_order_and_window() -> None:
    limits = MatchProbabilities(0.6, 0.8, 0.4).thresholds
    ahead, behind = AcceptanceDraws(3, "s", 5), AcceptanceDraws(3, "s", 5)
    ahead.num_accepted(60, 8, limits)
    for at in range(5, 50):
        run = behind.num_accepted(at, 8, limits)
        assert run == ahead.num_accepted(at, 8, limits) <= 8
        assert min(run, 3) == ahead.num_accepted(at, 3, limits)
    other = AcceptanceDraws(4, "s", 5)
    assert [other.num_accepted(at, 1, limits) for at in range(5, 40)] != [
        ahead.num_accepted(at, 1, limits) for at in range(5, 40)
    ]


def test_policies_under_one_seed_get_the_same_draws() -> None:
    """With one window the verdict at a position is the other window's, as far as both look."""
    found = {}
    for k in (1, 4, 8):
        queries, models = opened(4)
        records = simulate(setup("sled", override={"draft": WindowDraft(k)}), models, queries)
        assert all(len(r.tokens) == 40 for r in records.values())
        assert [r.tokens[-1] for r in records.values()] == [4 * 49] * 4
        found[k] = {(n, c.position): (c.accepted, len(c.tokens)) for n, r in records.items() for c in r.draft_decisions}
    for place, (accepted, n) in found[4].items():
        for k in (1, 8):
            if place in found[k]:
                other, m = found[k][place]
                assert min(accepted, n, m) == min(other, n, m)


def test_runs_with_one_seed_are_equal() -> None:
    def once(seed: int) -> Any:
        queries, models = opened(3, seed)
        return simulate(setup("sled", seed=seed), models, queries)

    assert once(1) == once(1) != once(2)


@pytest.mark.parametrize("name", ["sled", "synera", "edge_centric", "cloud_centric"])
def test_every_policy_runs_on_constant_acceptance(name: str) -> None:
    """Synera without its layer-wise exit, of which one number says nothing."""
    queries, models = opened(3)
    records = simulate(
        setup(name, override={"early_exit": SequencewiseExit(0.8)} if name == "synera" else {}), models, queries
    )
    assert {(r.ending, len(r.tokens)) for r in records.values()} == {("complete", 40)}
    assert models.notes() == ("the tokens are numbers, not words: quality is not simulated",)
    assert models.tokenizer.decode(records["r00000"].tokens) == ""


def test_loads_of_the_sampled_engine_equal_the_engines() -> None:
    queries, models = opened(acceptance_rate=1.0)
    prompt = queries[0].request.prompt
    outcome, loads = models.device.execute(DraftWork("r00000", 0, prompt, DraftStopRule(3)))
    assert (outcome.tokens, outcome.cached_len, outcome.stopped) == ((40, 44, 48), 12, False)  # type: ignore[union-attr]
    assert loads == (batch_load(32, [(0, 10), (10, 1), (11, 1)], 3)._replace(num_forwards=3, extra_sessions=0),)
    _, loads = models.device.execute(DraftWork("r00000", 0, prompt[:-1], DraftStopRule(0)))
    assert loads == (batch_load(32, [(0, 9)]),)
    seq = SequenceSlice("r00000", 0, 13, (*prompt, 40, 44, 49), 3, "greedy")
    results, loads = models.cloud.execute(
        ForwardWork(WHOLE, (seq, SequenceSlice("r00001", 4, 2, (16, 20))), ("last", "last"))
    )
    assert [r.verdict and (r.verdict.accepted, r.verdict.next_token) for r in results] == [(2, 48), None]  # type: ignore[union-attr]
    assert loads == (batch_load(32, [(0, 13), (4, 2)], 4),)


def test_a_batch_of_drafts_is_one_forward() -> None:
    _, models = opened(n=2, acceptance_rate=1.0)
    works = (
        DraftWork("r00000", 0, tuple(range(0, 40, 4)), DraftStopRule(1)),
        DraftWork("r00001", 0, tuple(range(0, 20, 4)), DraftStopRule(0)),
    )
    outcome, loads = models.device.execute(DraftBatch(works))
    assert isinstance(outcome, DraftBatchOutcome)
    assert outcome.outcomes == tuple(models.device.execute(work)[0] for work in works)
    assert loads == (batch_load(32, [(0, 10), (0, 5)], 1),)


def test_a_stop_rule_ends_the_draft() -> None:
    """A constant score is below the threshold at once, or never."""
    queries, models = opened(acceptance_rate=0.4)
    feed = queries[0].request.prompt
    for below, keep, n, passes in ((0.5, True, 1, 1), (0.5, False, 0, 1), (0.3, True, 4, 4)):
        work = DraftWork(
            "r00000", 0, feed, DraftStopRule(4, "margin", below, keep), requested_scores=("confidence", "importance")
        )
        outcome, loads = models.device.execute(work)
        assert (len(outcome.tokens), len(loads), outcome.cached_len) == (n, passes, 9 + passes)  # type: ignore[union-attr]
        assert outcome.scores == {"confidence": (0.4,) * n, "importance": (0.4,) * n}  # type: ignore[union-attr]


@pytest.mark.parametrize(("below", "keep", "n"), [(0.5, True, 4), (0.5, False, 3), (0.9, True, 1), (0.1, True, 8)])
def test_a_stop_rule_may_compare_the_product_of_scores(below: float, keep: bool, n: int) -> None:
    """Of scores of 0.8: 0.8, 0.64, 0.512, 0.41."""
    queries, models = opened(acceptance_rate=0.8)
    rule = DraftStopRule(8, "confidence", below, keep, product=True)
    outcome, _ = models.device.execute(DraftWork("r00000", 0, queries[0].request.prompt, rule))
    assert len(outcome.tokens) == n  # type: ignore[union-attr]
    assert outcome.stopped == (n < 8)  # type: ignore[union-attr]


def test_sampled_drafts_carry_their_distributions() -> None:
    queries, models = opened()
    work = DraftWork("r00000", 0, queries[0].request.prompt, DraftStopRule(3), sampling=SamplingParams(1.0, 0, 1.0, 0))
    outcome, _ = models.device.execute(work)
    assert len({ref.id for ref in outcome.draft_probs}) == 3  # type: ignore[union-attr]
    assert outcome.probs_support == (0, 0, 0)  # type: ignore[union-attr]
    assert ConstantAcceptance().make_queries(asked(1), Decoding(0.8), 5)[0].request.sampling == SamplingParams(
        0.8, 0, 1.0, 5
    )


@pytest.mark.parametrize(
    ("top_k", "payload", "kept", "note"),
    [
        (5, TokenPayload(), 5, "naming 5 tokens"),
        (0, TokenPayload(), 0, "naming all of the vocabulary"),
        (5, FullDistributionPayload(), 0, None),
    ],
)
def test_a_sampled_distribution_has_top_k_entries(top_k: int, payload: Any, kept: int, note: str | None) -> None:
    made, outcomes = setup("sled", override={"payload": payload}), ConstantAcceptance(prompt_tokens=10)
    queries = outcomes.make_queries(asked(2), Decoding(0.8, top_k=top_k), 0)
    models = outcomes.open(queries, made.policy, 0)
    call = queries[0].request
    for feed, branches in ((call.prompt, ()), ((), (call.prompt, (*call.prompt, 40)))):
        work = DraftWork(call.session, 0, feed, DraftStopRule(2), sampling=call.sampling, branches=branches)
        outcome, _ = models.device.execute(replace(work, full_draft_probs=made.policy.payload.full_distributions))
        assert outcome.probs_support == (kept, kept)  # type: ignore[union-attr]
        assert len(outcome.draft_probs) == 2  # type: ignore[union-attr]
    assert [note in said for said in models.notes()[1:]] == ([True] if note else [])
    assert {r.ending for r in simulate(made, models, queries).values()} == {"complete"}


def test_greedy_drafts_carry_full_distributions_on_request() -> None:
    made = setup("sled", override={"payload": FullDistributionPayload()})
    queries, _ = opened()
    engine = ConstantAcceptance(prompt_tokens=10).open(queries, made.policy, 0).device
    outcome, _ = engine.execute(
        DraftWork("r00000", 0, queries[0].request.prompt, DraftStopRule(3), full_draft_probs=True)
    )
    assert (len(outcome.draft_probs), outcome.probs_support) == (3, (0, 0, 0))  # type: ignore[union-attr]


def test_a_draft_at_an_unexpected_position_is_an_error() -> None:
    _, models = opened()
    shifted = SequenceSlice("r00000", 0, 12, (*range(0, 40, 4), 44, 48), 2, "greedy")
    with pytest.raises(RuntimeError, match="44 is no draft for token 10"):
        models.cloud.execute(ForwardWork(WHOLE, (shifted,), ("last",)))


def test_values_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"outcomes\.acceptance_rate is 1\.2; it is the share of accepted drafts: 0 to 1"
    ):
        ConstantAcceptance(1.2)
    with pytest.raises(ValueError, match="a prompt has at least 1 token"):
        ConstantAcceptance(prompt_tokens=0)
    with pytest.raises(ValueError, match=r"after_wrong is -0\.1; a probability lies between 0 and 1"):
        MatchProbabilities(0.5, 0.5, -0.1)
    with pytest.raises(ValueError, match="runtime/outcomes=constant knows drafts made running all layers"):
        ConstantAcceptance().open([], setup("sled", override={"early_exit": LayerwiseExit()}).policy, 0)
    _, models = opened()
    with pytest.raises(ValueError, match="leaves layers early by a rule that this model of acceptance does not know"):
        models.device.execute(
            DraftWork("r00000", 0, (0,), DraftStopRule(1), early_exit=EarlyExitRule("margin", 0.1, 0.25))
        )


def test_a_session_in_a_cache_that_it_was_given_draws_its_own_acceptance() -> None:
    _, engines = opened(2, acceptance_rate=0.5)
    _, others = opened(2, acceptance_rate=0.5)
    engines.device.execute(DraftWork("r00000", 0, (0,) * 10, DraftStopRule(4)))
    engines.device.move("r00000", "r00001")
    for start in range(6, 40, 4):
        work = DraftWork("r00001", start, (0,) * 4, DraftStopRule(4))
        assert engines.device.execute(work) == others.device.execute(work)


def test_whether_the_draft_before_was_right_is_what_was_drawn_of_it() -> None:
    limits, draws = MatchProbabilities(0.5, 0.5, 0.5).thresholds, AcceptanceDraws(3, "s", 7)
    right = [draws.num_accepted(7 + at, 1, limits) for at in range(60)]
    assert {0, 1} == set(right)
    assert [draws.previous_is_right(8 + at) for at in range(60)] == right
    assert draws.previous_is_right(7) == 1
