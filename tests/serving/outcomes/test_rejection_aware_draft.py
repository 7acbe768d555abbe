"""Drafts that end where a predictor sees a rejection: by engine, trace, fitted pools and stated rates alike."""

from dataclasses import replace
from typing import Any

import pytest

from serving.core.decoding import Decoding
from serving.core.scores import ACCEPTANCE, LOGIT_SCORES
from serving.core.session import Session
from serving.deployment.queries import LoadedModels
from serving.deployment.setup import Setup
from serving.engines.torch.engine import TorchEngine
from serving.messages import DraftOutcome, DraftStopRule, DraftWork, GenerationRequest
from serving.metrics.recorder import SessionRecord
from serving.outcomes import fit
from serving.outcomes.constant import ConstantAcceptance, StatedPredictor
from serving.outcomes.record import TraceRecorder
from serving.outcomes.replayed import TraceOutcomes
from serving.policy.slots.draft import RejectionAwareDraft, WindowDraft
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.lookahead import SyneraLookahead
from serving.runtimes.emulated import simulate
from serving.workload.prompt import Prompt
from serving.workload.workload import WorkloadRequest
from tests.serving.outcomes.made_up_trace import trace
from tests.serving.outcomes.noisy_pair import pair, questions
from tests.support.fake_setup import setup
from tests.support.learned_models import ConfidenceScorer
from tests.support.policies import THRESHOLDS

BELOW = 0.45


def predicted(judge: Any, k: int = 6, **slots: Any) -> Setup:
    made = setup("sled")
    draft = RejectionAwareDraft(k, judge)
    return replace(made, policy=replace(made.policy, draft=draft, kv_cache=PrefixCaching(), **slots))


def judging(models: LoadedModels, judge: Any) -> LoadedModels:
    assert isinstance(models.device, TorchEngine)
    engine = TorchEngine(models.device.model, tensor_store=models.device.tensor_store, scorers={ACCEPTANCE: judge})
    return replace(models, device=engine)


def texts(records: dict[str, SessionRecord]) -> list[list[int]]:
    return [record.tokens for record in records.values()]


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return pair(noise=0.05)


def test_a_draft_ends_before_the_first_predicted_rejection(models: LoadedModels) -> None:
    engine = judging(models, ConfidenceScorer(BELOW)).device
    work = DraftWork("a", 0, tuple(range(8, 20)), DraftStopRule(8), requested_scores=(ACCEPTANCE, *LOGIT_SCORES))
    whole, _ = engine.execute(work)
    assert isinstance(whole, DraftOutcome)
    chances = whole.scores[ACCEPTANCE]
    assert chances == pytest.approx(whole.scores["confidence"])
    doubt = chances.index(min(chances[1:]))
    below = 0.5 * (chances[doubt] + min(chances[:doubt]))
    drafted, _ = engine.execute(
        replace(
            work,
            stop_rule=DraftStopRule(8, ACCEPTANCE, below, keep_last=False, min_tokens=1),
            requested_scores=(ACCEPTANCE,),
        )
    )
    assert isinstance(drafted, DraftOutcome)
    assert drafted.tokens == whole.tokens[:doubt]
    assert drafted.stopped


def test_the_first_draft_is_sent_even_if_its_rejection_is_predicted(models: LoadedModels) -> None:
    made = predicted(ConfidenceScorer(0.5, always=0.1))
    records = simulate(made, judging(models, ConfidenceScorer(0.5, always=0.1)), questions())
    chunks = [chunk for record in records.values() for chunk in record.draft_decisions]
    assert {len(chunk.tokens) for chunk in chunks} == {1}
    assert not any(record.discarded_tokens for record in records.values())
    assert texts(records) == texts(simulate(setup("sled"), models, questions()))


@pytest.mark.parametrize("slots", [{}, {"lookahead": SyneraLookahead(THRESHOLDS)}])
def test_a_replayed_trace_decides_as_the_engine(
    slots: dict[str, Any], models: LoadedModels, tmp_path_factory: Any
) -> None:
    made, judge = predicted(ConfidenceScorer(BELOW), **slots), ConfidenceScorer(BELOW)
    ran = simulate(made, judging(models, judge), questions())
    recording = TraceRecorder(judging(models, judge), made.policy, 0, 8, {"pair": "two random Llamas"}, None)
    read = recording.record(questions(), tmp_path_factory.mktemp("trace"), lambda *_: None)
    looked_up = simulate(made, TraceOutcomes(read, None).open(questions(), made.policy, 0), questions())  # type: ignore[arg-type]
    for name, record in ran.items():
        assert [(c.position, c.tokens, c.accepted) for c in record.draft_decisions] == [
            (c.position, c.tokens, c.accepted) for c in looked_up[name].draft_decisions
        ]
    counts = [(r.drafted, r.discarded_tokens, r.drafts_accepted, r.drafts_verified) for r in ran.values()]
    assert counts == [(r.drafted, r.discarded_tokens, r.drafts_accepted, r.drafts_verified) for r in looked_up.values()]
    assert sum(record.discarded_tokens for record in ran.values()) > 5


def asked(n: int) -> list[WorkloadRequest]:
    return [WorkloadRequest(i, Prompt(f"p{i}", "", (), ""), i % 2, i, None, 0.0, 99, 60, None) for i in range(n)]


def served(outcomes: Any, made: Setup, n: int = 40) -> tuple[float, float]:
    """Share of the sent drafts that stood, and drafts a round."""
    queries = outcomes.make_queries(asked(n), Decoding(), 0)
    records = simulate(made, outcomes.open(queries, made.policy, 0), queries).values()
    sent, rounds = sum(r.drafts_verified for r in records), sum(r.num_offloaded for r in records)
    return sum(r.drafts_accepted for r in records) / sent, sent / rounds


def test_fitted_scores_let_a_predictor_reduce_rejections() -> None:
    outcomes = fit.fit_acceptance(trace(sessions=20), 0)
    plain = setup("sled")
    window = replace(plain, policy=replace(plain.policy, draft=WindowDraft(6)))
    (blind, many), (seeing, few) = served(outcomes, window), served(outcomes, predicted(ConfidenceScorer(0.55)))
    assert seeing > 1.15 * blind
    assert few < many


def test_a_stated_predictor_errs_at_its_stated_rates() -> None:
    """A chain of right drafts that were let through, by hand: each of them continues with the chance 0.8 x 0.7."""
    outcomes = ConstantAcceptance(acceptance_rate=0.8, prompt_tokens=10)
    share, drafts = served(outcomes, predicted(StatedPredictor(recall=0.7, false_alarm=0.0), k=30), n=120)
    passes = 0.8 * 0.7
    # The first draft is sent in any case; a further one only if those before it, it too, were let through.
    expected_sent = 1 + passes * passes / (1 - passes)
    expected_good = 0.8 + passes * passes / (1 - passes)
    assert drafts == pytest.approx(expected_sent, rel=0.06)
    assert share == pytest.approx(expected_good / expected_sent, abs=0.03)


def test_a_stated_predictor_judges_drafts_behind_the_first_wrong_one_at_a_rate_of_their_own() -> None:
    """All drafts are wrong: the first is sent; behind it, if it passes, those are sent that pass at the third rate."""
    outcomes = ConstantAcceptance(acceptance_rate=0.0, prompt_tokens=10)
    for suffix, expected in ((0.0, 1.0), (0.5, 1.5), (None, 1.5), (0.6, 1.75)):
        judge = StatedPredictor(recall=1.0, false_alarm=0.5, suffix_false_alarm=suffix)
        _, drafts = served(outcomes, predicted(judge, k=40), n=120)
        assert drafts == pytest.approx(expected, rel=0.04)


def test_predictors_without_their_scores_are_refused() -> None:
    outcomes = ConstantAcceptance(acceptance_rate=0.8, prompt_tokens=10)
    queries = outcomes.make_queries(asked(2), Decoding(), 0)
    with pytest.raises(ValueError, match=r"knows no scores for it.*policy/draft=stated_predictor"):
        outcomes.open(queries, predicted(ConfidenceScorer(0.5)).policy, 0)
    with pytest.raises(ValueError, match=r"known by its rates alone.*policy/draft=rejection_predictor"):
        fit.fit_acceptance(trace(sessions=4), 0).open(queries, predicted(StatedPredictor()).policy, 0)
    with pytest.raises(ValueError, match=r"recall is 1\.2"):
        StatedPredictor(recall=1.2)
    with pytest.raises(ValueError, match=r"suffix_false_alarm is -0\.1"):
        StatedPredictor(suffix_false_alarm=-0.1)


@pytest.mark.parametrize(("k", "limit", "longest"), [(4, 20, 4), (8, 3, 3)])
def test_a_draft_is_no_longer_than_the_window_and_the_answer(k: int, limit: int, longest: int) -> None:
    session = Session(GenerationRequest("a", (1, 2), limit), 0)
    for threshold, wanted in ((None, 0.6), (0.3, 0.3)):
        stop = RejectionAwareDraft(k, ConfidenceScorer(0.6), threshold).next_stop(session)
        assert stop is not None
        assert (stop.max_tokens, stop.threshold) == (longest, wanted)
