"""A model of acceptance against the trace that it was fitted to, and its artifact."""

import json
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from serving.core.decoding import Decoding
from serving.core.session import Session
from serving.hardware.exit_depths import ExitDepths, with_head_loads
from serving.messages import DraftOutcome, DraftStopRule, DraftWork, EarlyExitRule
from serving.outcomes import fit, fitted
from serving.outcomes.acceptance_draws import AcceptanceDraws, MatchProbabilities
from serving.outcomes.fitted import AnswerLengths, FittedAcceptance
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.early_exit import LayerwiseExit, ProgressiveExit
from serving.runtimes.emulated import simulate
from serving.workload.prompt import Prompt
from serving.workload.workload import WorkloadRequest
from tests.serving.outcomes.made_up_trace import trace
from tests.support.fake_setup import setup


@pytest.fixture(scope="module")
def model() -> FittedAcceptance:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "SAMPLED_POSITIONS", 10_000)
        return fit.fit_acceptance(trace(), 0)


def asked(n: int) -> list[WorkloadRequest]:
    return [WorkloadRequest(i, Prompt(f"q{i}", "", (), ""), i % 2, i, None, 0.0, 99, 64, None) for i in range(n)]


def test_fitted_probabilities_are_those_of_the_trace(model: FittedAcceptance) -> None:
    for found, true, n in ((model.probabilities.after_right, 0.8, 1650), (model.probabilities.after_wrong, 0.5, 650)):
        assert abs(found - true) <= 4 * sqrt(true * (1 - true) / n)


def test_goodness_of_fit_compares_draws_with_the_record(model: FittedAcceptance) -> None:
    rate, auc = model.fit_quality["rate"], model.fit_quality["auc"]
    assert rate["model"] == pytest.approx(rate["trace"], abs=0.06)
    assert auc["model"] == pytest.approx(auc["trace"], abs=0.06)
    assert 0.7 < auc["trace"] < 0.95
    assert list(model.fit_quality["windows"]) == [str(k) for k in range(1, 9)]
    for window in model.fit_quality["windows"].values():
        assert sum(window["trace"]) == pytest.approx(1) == sum(window["model"])
        assert window["total_variation"] < 0.1


def test_goodness_of_fit_detects_a_bad_model(model: FittedAcceptance) -> None:
    answers = fit._sample_answers([[True] * 50], MatchProbabilities(0.9, 0.9, 0.9), model.pools, 0)[0]
    others = fit._sample_answers([[True] * 50], MatchProbabilities(0.4, 0.4, 0.4), model.pools, 0)[0]
    assert fit.compare_acceptance(answers, others)["windows"]["4"]["total_variation"] > 0.3  # type: ignore[index]


def test_windows_begin_after_the_previous_correction() -> None:
    answer = [True, True, False, True, True, True, False, False]
    assert fit.accepted_lengths([answer], 2) == [1 / 3, 0, 2 / 3]
    assert fit.accepted_lengths([answer], 9) == [0.0] * 10


def test_auc_counts_ties_half() -> None:
    assert fit.auc([0.1, 0.4, 0.35, 0.8], [False, False, True, True]) == 0.75
    assert fit.auc([0.5, 0.5], [True, False]) == 0.5
    assert fit.auc([0.5, 0.6], [True, True]) == 0.5


def test_a_fitted_run_has_the_traces_acceptance_and_informative_scores(model: FittedAcceptance) -> None:
    queries = model.make_queries(asked(30), Decoding(), 0)
    policy = setup("sled", override={"draft": WindowDraft(4, "confidence", 0.01)})
    records = simulate(policy, model.open(queries, policy.policy, 0), queries)
    chunks = [chunk for record in records.values() for chunk in record.draft_decisions]
    first = [chunk.accepted > 0 for chunk in chunks if chunk.accepted is not None]
    confidence = [chunk.scores["confidence"][0] for chunk in chunks]
    assert fit.auc(confidence, first) == pytest.approx(model.fit_quality["auc"]["trace"], abs=0.12)
    mean = sum(c.accepted or 0 for c in chunks if len(c.tokens) == 4) / sum(len(c.tokens) == 4 for c in chunks)
    assert mean == pytest.approx(model.fit_quality["windows"]["4"]["mean"]["trace"], abs=0.35)


def test_lookahead_sees_the_targets_token_among_the_candidates(model: FittedAcceptance) -> None:
    """In the made-up trace the target's token is the second candidate of every wrong draft."""
    queries = model.make_queries(asked(1), Decoding(), 0)
    ahead = replace(setup("sled").policy, lookahead=Ahead())
    call = queries[0].request
    seen = set()
    for who in (ahead, setup("sled").policy):
        engine = model.open(queries, who, 0).device
        for at in range(len(call.prompt), len(call.prompt) + 30):
            drafted = engine.execute(DraftWork(call.session, 0, tuple(range(at)), DraftStopRule(1)))[0]
            token, second, _ = drafted.top_candidates[0]  # type: ignore[union-attr]
            seen.add((who is ahead, token - 4 * at, second - 4 * at))
    assert seen == {(True, 0, 2), (True, 1, 0), (False, 0, 2), (False, 1, 2)}


@dataclass(frozen=True)
class Ahead:
    max_steps: ClassVar[int] = 1
    requested_scores: ClassVar[tuple[str, ...]] = ()
    monitors_link: ClassVar[bool] = False

    def num_steps(self, s: object) -> int:
        return self.max_steps

    def assumed_verdicts(self, s: Session) -> tuple[tuple[int, int | None], ...]:
        return ()


@pytest.fixture(scope="module")
def leaving() -> FittedAcceptance:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "SAMPLED_POSITIONS", 1000)
        return fit.fit_acceptance(trace(20, exits=True), 0)


def test_exit_depths_are_drawn_together_with_scores(leaving: FittedAcceptance) -> None:
    """Each draft's confidence and depth stand side by side in the trace; loads follow from earlier exits."""
    recorded, rule = trace(20, exits=True).tables, EarlyExitRule("margin", 0.7, 0.25)
    pairs = set(zip(recorded.scores["confidence"].ravel().tolist(), recorded.exit_layers.ravel().tolist(), strict=True))
    queries = leaving.make_queries(asked(1), Decoding(), 0)
    call, ledger = queries[0].request, ExitDepths(4)
    engine = leaving.open(queries, setup("sled", override={"early_exit": LayerwiseExit()}).policy, 0).device
    found = []
    for at in range(len(call.prompt), len(call.prompt) + 30, 2):
        feed = tuple(range(max(0, at - 3), at))
        outcome, loads = engine.execute(
            DraftWork(
                call.session, at - len(feed), feed, DraftStopRule(4), requested_scores=("confidence",), early_exit=rule
            )
        )
        assert isinstance(outcome, DraftOutcome)
        ledger.truncate(at - len(feed))
        depths = [round(4 * share) for share in outcome.exit_depths]
        expected = [ledger.run_forward(1 if i else len(feed), depth) for i, depth in enumerate(depths)]
        assert loads == tuple(
            x for p, d in zip(expected, depths, strict=True) for x in with_head_loads(p, 1, int(d == 4))
        )
        found += list(zip(outcome.scores["confidence"], depths, strict=True))
    assert {(float(np.float32(confidence)), depth) for confidence, depth in found} <= pairs
    assert {depth for _, depth in found} == {3, 4}


def test_an_adopted_draft_has_the_importance_of_direct_drafting(leaving: FittedAcceptance) -> None:
    queries = leaving.make_queries(asked(1), Decoding(), 0)
    call = queries[0].request
    engine = leaving.open(queries, setup("sled", override={"early_exit": LayerwiseExit()}).policy, 0).device
    text, probes, rule = call.prompt, ("importance",), EarlyExitRule("margin", 0.7, 0.25)
    once = engine.execute(DraftWork(call.session, 0, text, DraftStopRule(4), (), probes, None, rule))[0]
    more = engine.execute(
        DraftWork(call.session, 0, (*text, 0, 0), DraftStopRule(2), (), probes, None, rule, num_adopted_drafts=2)
    )[0]
    only = engine.execute(
        DraftWork(call.session, 0, (*text, 0), DraftStopRule(0), (), probes, None, rule, num_adopted_drafts=2)
    )[0]
    two = engine.execute(DraftWork(call.session, 0, text, DraftStopRule(2), (), probes, None, rule))[0]
    branch = engine.execute(DraftWork(call.session, 0, (), DraftStopRule(1), (), probes, None, rule, (text,)))[0]
    assert more.scores == once.scores  # type: ignore[union-attr]
    assert only.scores == two.scores  # type: ignore[union-attr]
    assert (branch.scores, len(branch.exit_depths)) == ({}, 1)  # type: ignore[union-attr]


def test_a_policy_with_another_exit_rule_is_refused(leaving: FittedAcceptance, tmp_path: Path) -> None:
    fitted.save(tmp_path, leaving)
    again = fitted.load(tmp_path)
    assert (again, again.exit_rule) == (leaving, EarlyExitRule("margin", 0.7, 0.25))
    with pytest.raises(ValueError, match=r"policy sled drafts running all layers, and the trace that acceptance was"):
        leaving.open([], setup("sled").policy, 0)
    made = setup("synera", override={"early_exit": ProgressiveExit(sequence_fraction=0.9)})
    queries = leaving.make_queries(asked(4), Decoding(), 0)
    records = simulate(made, leaving.open(queries, made.policy, 0), queries)
    assert {r.ending for r in records.values()} == {"complete"}


def test_prompt_and_answer_lengths_are_drawn_from_the_record(model: FittedAcceptance) -> None:
    """Every second made-up answer ended before its limit; the others may be as long as is asked now."""
    queries = model.make_queries(asked(80), Decoding(), 3)
    assert {len(q.request.prompt) for q in queries} == {6, 7, 8}
    assert {q.request.max_new_tokens for q in queries} == {40, 64}
    assert queries == model.make_queries(asked(80), Decoding(), 3) != model.make_queries(asked(80), Decoding(), 4)


def test_recorded_prompts_are_cut_at_the_workloads_limit(model: FittedAcceptance) -> None:
    requests = [replace(one, max_prompt_tokens=7) for one in asked(80)]
    queries = model.make_queries(requests, Decoding(), 3)
    assert {(len(query.request.prompt), query.num_cut) for query in queries} == {(6, 0), (7, 0), (7, 1)}


def test_answers_of_a_given_mean_end_at_each_token_with_the_same_chance(model: FittedAcceptance) -> None:
    given = replace(model, answer_lengths=AnswerLengths(20))
    lengths = [query.request.max_new_tokens for query in given.make_queries(asked(2000), Decoding(), 0)]
    assert min(lengths) >= 1
    assert max(lengths) == 64
    assert sum(lengths) / len(lengths) == pytest.approx(20, abs=1.5)
    longer = [length - 10 for length in lengths if length > 10]
    assert sum(longer) / len(longer) == pytest.approx(19.6, abs=1.5)  # 54 more at most


def test_the_mean_of_answers_counts_those_at_the_limit() -> None:
    draws = [(i + 0.5) / 4000 for i in range(4000)]
    for mean in (1, 30, 64, 100):
        found = [AnswerLengths(mean).quantile(draw, 128) for draw in draws]
        assert sum(found) / len(found) == pytest.approx(mean, abs=0.1)
    with pytest.raises(ValueError, match="at most 128 tokens"):
        AnswerLengths(128).quantile(0.5, 128)
    with pytest.raises(ValueError, match="at least 1"):
        AnswerLengths(0.5)


def test_a_request_with_a_part_of_the_limit_gets_a_part_of_a_drawn_answer(model: FittedAcceptance) -> None:
    """As the first of each device of a load test: 64 tokens are the workload's limit, 3 the request's."""
    given = replace(model, answer_lengths=AnswerLengths(20))
    whole = [replace(one, workload_max_new_tokens=64) for one in asked(200)]
    parts = [replace(one, max_new_tokens=3) for one in whole]
    drawn, cut = (
        [query.request.max_new_tokens for query in given.make_queries(requests, Decoding(), 0)]
        for requests in (whole, parts)
    )
    assert cut == [min(3, length) for length in drawn]
    with pytest.raises(
        ValueError, match=r"answer_lengths\.mean is 64, .* at most 64 tokens; .*workload\.max_new_tokens"
    ):
        replace(model, answer_lengths=AnswerLengths(64)).make_queries(parts, Decoding(), 0)


def test_lengths_of_answers_are_stated_once(model: FittedAcceptance) -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        replace(model, full_length_answers=True, answer_lengths=AnswerLengths(20))


def test_a_saved_acceptance_model_is_loaded(model: FittedAcceptance, tmp_path: Path) -> None:
    fitted.save(tmp_path, model)
    again = fitted.load(tmp_path)
    assert again == model
    assert again.described.startswith("no models and no text: drafts are right as in a trace of a made-up pair")


def test_a_damaged_artifact_is_refused(model: FittedAcceptance, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*fitted.json; runtime\.outcomes\.path names a folder"):
        fitted.load(tmp_path)
    fitted.save(tmp_path, model)
    header = tmp_path / fitted.HEADER_FILE
    content = json.loads(header.read_text(encoding="utf-8"))
    header.write_text(json.dumps(content | {"num_whole_drafts": [9] * 5}), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"attention has the shape .*; its rows have 22 numbers.*build it again.*stage=fit_outcomes"
    ):
        fitted.load(tmp_path)


def test_the_importance_of_a_draft_is_that_of_recorded_drafts_of_at_least_its_length() -> None:
    """Every other continuation of the text has two tokens, and those of look-ahead branches have one."""
    made = trace()
    text = made.sessions[-1].first_row + made.sessions[-1].num_positions
    tables = made.tables
    lens = np.concatenate([np.where(np.arange(text) % 2, 4, 2), np.full(500, 1)]).astype(np.int32)
    values = np.array([4.0, 2.0, 1.0])[np.searchsorted([-4, -2, -1], -lens)]  # of attention: the draft's length
    attention = np.broadcast_to(values[:, None, None], (len(lens), 2, 7)).astype(np.float32).copy()
    for first_missing, length in ((1, 1), (2, 2)):
        attention[lens == length, :, first_missing:] = 0
    longer = {
        name: np.concatenate([table, table[:500]])
        for name, table in vars(tables).items()
        if isinstance(table, np.ndarray)
    }
    scores = {name: np.concatenate([table, table[:500]]) for name, table in tables.scores.items()}
    changed = {"continuation_lens": lens, "attention": attention, "scores": scores}
    pools = fit.fit_acceptance(replace(made, tables=replace(tables, **(longer | changed))), 0).pools
    draws = AcceptanceDraws(0, "any", 0)
    for n, seen in ((1, {2.0, 4.0}), (2, {2.0, 4.0}), (3, {4.0}), (4, {4.0})):
        found = {pools.importance(draws, at, n, "importance_mean")[0] for at in range(200)}
        assert found == seen, n
    assert pools.importance(draws, 0, 7, "importance_mean") == (4.0,) * 7


def test_a_trace_without_rejections_cannot_be_fitted(model: FittedAcceptance) -> None:
    perfect = trace(3, 5, after_right=1.0)
    with pytest.raises(ValueError, match="all right or all wrong"):
        fit.fit_acceptance(perfect, 0)
    with pytest.raises(ValueError, match="needs recorded lengths"):
        replace(model, session_lengths=())


def test_a_trace_without_a_draft_model_is_fitted(tmp_path: Path) -> None:
    """Its drafts are the target's own, and all right."""
    alone = replace(trace(3, 5, after_right=1.0), made_from={"pair": "a model + a model"})
    fitted.save(tmp_path, fit.fit_acceptance(alone, 0))
    found = fitted.load(tmp_path)
    assert found.probabilities.after_right > 0.9
    assert sorted(n for _, n, _ in found.session_lengths) == sorted(
        len(one.token_ids) - one.prompt_tokens for one in alone.sessions
    )
