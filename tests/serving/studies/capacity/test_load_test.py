"""Load tests of a few devices in steady state, against values computed by hand."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from serving.deployment.topology import Topology
from serving.messages import EmitTokens, RequestArrived
from serving.outcomes.constant import StatedPredictor
from serving.outcomes.fit import fit_acceptance
from serving.outcomes.fitted import AnswerLengths
from serving.outcomes.replayed import TraceOutcomes
from serving.policy.slots.draft import GoodputDraft, RejectionAwareDraft
from serving.policy.slots.placement import ColocatedPlacement
from serving.policy.slots.scheduler import ContinuousBatch
from serving.studies.capacity import load_test
from serving.studies.capacity.load_test import LoadTest, LoadTestResult, _window_metrics, run_load_test
from serving.studies.capacity.offered_load import ClosedLoopClients, OutOfQueriesError, make_load
from serving.studies.capacity.slo_evaluation import AnswerTiming, LoadObserver, SloEvaluator, WindowCounts
from serving.workload.arrivals import Poisson
from serving.workload.slo import SloClass
from tests.serving.outcomes.made_up_trace import trace
from tests.serving.studies.capacity.steady_setup import ALWAYS, SOMETIMES, setup, wisp_like
from tests.support.conf_files import link
from tests.support.policies import policy

SHORT = LoadTest(warmup_s=4, window_s=8, stagger_s=2, answers=4)


def test_a_lone_device_is_as_fast_as_its_rounds() -> None:
    """Two rounds of 8 drafts and a bonus: 16 passes of 20 ms, a verification of the prompt and one of 9 rows."""
    one = run_load_test(setup(), ALWAYS, SHORT, 1, 0)
    cold_s = 33.14e-6 * 108 + 34.5e-9 * 108 * 108 + 14.86e-3
    warm_s = 33.14e-6 * 9 + 34.5e-9 * 117 * 9 + 4.62e-6 * 108 + 14.86e-3
    assert one.speeds["c"] == pytest.approx(18 / (16 * 0.02 + cold_s + warm_s), rel=0.01)
    assert one.metrics["goodput_tokens_per_s"] == pytest.approx(one.speeds["c"], rel=0.1)
    assert one.metrics["acceptance_rate"] == 1
    assert one.metrics["wasted_tokens_per_s"] == 0
    assert one.violation_rate == 0


def test_a_load_test_tells_drafters_in_the_cloud_what_its_scheduler_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft is as long as pays off among the sessions that share a pass."""
    found: list[Any] = []
    profile = Topology._chip_profile

    def recorded(topology: Topology, name: str) -> Any:
        found.append(profile(topology, name))
        return found[-1]

    monkeypatch.setattr(Topology, "_chip_profile", recorded)
    chosen = replace(
        wisp_like(), placement=ColocatedPlacement(), draft=GoodputDraft(8), scheduler=ContinuousBatch(48, 128)
    )
    run_load_test(setup(chosen=chosen), SOMETIMES, SHORT, 1, 0)
    assert {(one.max_sessions, one.max_tokens) for one in found} == {(48, 128)}


def test_wasted_drafts_are_those_that_the_cloud_rejects() -> None:
    """Those that the predictor keeps from the cloud are counted apart (WISP, Eq. 7, 26)."""
    predicted = replace(wisp_like(), draft=RejectionAwareDraft(8, StatedPredictor()))
    found = run_load_test(setup(50.0, predicted), SOMETIMES, SHORT, 4, 0).metrics
    sent = found["drafts_per_verification"] * found["verifications_per_s"]
    assert found["wasted_tokens_per_s"] == pytest.approx((1 - found["acceptance_rate"]) * sent / 4)
    assert found["dropped_share"] > 0.05
    assert run_load_test(setup(50.0, wisp_like()), SOMETIMES, SHORT, 4, 0).metrics["dropped_share"] < 0.01


@pytest.mark.parametrize(("rate", "answers", "rounds"), [(50.0, 0, 0), (50.6, 0, 0.5), (51.0, 1, 0.5), (52.0, 1, 1)])
def test_a_lone_device_has_late_rounds_where_its_answers_are_in_time(
    rate: float, answers: float, rounds: float
) -> None:
    """An answer is two rounds of 9 tokens; the first reads the prompt (50.3 tokens/s), the second does not (51.3)."""
    one = run_load_test(setup(rate), ALWAYS, SHORT, 1, 0)
    assert (one.violation_rate, one.late_share("rounds")) == (answers, pytest.approx(rounds, abs=0.02))
    assert one.rounds["c"] == pytest.approx(2 * one.metrics["goodput_tokens_per_s"] * 8 / 18, abs=1)


def test_answers_slower_than_the_slo_are_violations() -> None:
    assert run_load_test(setup(60.0), ALWAYS, SHORT, 3, 0).violation_rate == 1


def test_unanswered_requests_are_violations_and_the_run_ends() -> None:
    many = run_load_test(setup(40.0, policy("sled")), SOMETIMES, SHORT, 40, 0)
    assert many.answers["c"] > 0
    assert many.violation_rate == 1


def test_load_tests_with_one_seed_are_equal() -> None:
    def once(seed: int) -> LoadTestResult:
        found = run_load_test(setup(network="wifi"), SOMETIMES, SHORT, 4, seed)
        return LoadTestResult(found.num_devices, 0, found.answers, found.violations, found.speeds, {})

    assert once(3) == once(3)
    assert once(3) != once(4)


def test_a_load_test_may_stop_at_enough_violations() -> None:
    slow = setup(40.0, policy("cloud_centric", scheduler=ContinuousBatch(1)))
    assert run_load_test(slow, ALWAYS, SHORT, 20, 0, max_late_share=0.1).violation_rate > 0.1


@pytest.mark.parametrize("speed_from", ["asked", "first_token"])
def test_a_load_test_that_stops_early_counts_what_is_late_by_then(speed_from: Any) -> None:
    """In the end all answers are late; others had time left when more than 15 % were."""
    slow = setup(4.0, policy("cloud_centric", scheduler=ContinuousBatch(1)))
    counted = replace(SHORT, speed_from=speed_from)
    whole = run_load_test(slow, ALWAYS, counted, 24, 0)
    early = run_load_test(slow, ALWAYS, counted, 24, 0, max_late_share=0.15)
    assert whole.answers == early.answers
    assert whole.violation_rate == 1
    assert 0.15 < early.violation_rate < 0.5


def test_devices_keep_their_slo_class_and_start_staggered() -> None:
    classes = tuple(SloClass(name=name, tokens_per_s=2, share=0.5) for name in "ab")
    load = make_load(setup(slo=classes), ALWAYS, 6, 10.0, 2.0)
    by_device = {d: {q.slo.name for q in load.queries if q.device == d and q.slo} for d in range(6)}
    assert [len(names) for names in by_device.values()] == [1] * 6
    assert sorted(name for names in by_device.values() for name in names) == ["a"] * 3 + ["b"] * 3
    assert len({round(at, 3) for at in load.start_times_s}) == 6
    assert all(0 <= at < 2 for at in load.start_times_s)
    first = [next(q for q in load.queries if q.device == d).request.max_new_tokens for d in range(6)]
    assert len(set(first)) > 1
    assert {q.request.max_new_tokens for q in load.queries[6:]} == {18}


def test_a_load_on_a_trace_asks_all_of_its_prompts() -> None:
    """Those of a data set that was recorded, too: the first of them was asked by every device before."""
    recorded = trace(20)
    text = SimpleNamespace(prompts=lambda: [one.prompt for one in recorded.sessions], metrics=())
    asked = setup(dataset=text)
    load = make_load(asked, TraceOutcomes(recorded, None), 40, 10.0, 2.0)  # type: ignore[arg-type]
    times_asked = Counter(query.prompt.id for query in load.queries)
    assert len(times_asked) == 20
    assert max(times_asked.values()) < 2 * len(load.queries) / 20


def test_first_answers_are_parts_of_answers_of_drawn_lengths() -> None:
    """Some have fewer tokens than the mean, which no distribution with so low a limit has."""
    fitted = replace(fit_acceptance(trace(), 0), answer_lengths=AnswerLengths(9))
    limits = [query.request.max_new_tokens for query in make_load(setup(), fitted, 40, 10.0, 2.0).queries]
    assert min(limits[:40]) < 9
    assert sum(limits[40:]) / len(limits[40:]) == pytest.approx(9, abs=0.5)


def test_a_device_without_prompts_left_is_an_error() -> None:
    load = make_load(setup(), ALWAYS, 1, 0.01, 0.0)
    posted: list[str] = []
    loop = ClosedLoopClients(load, ["device-0"], lambda _, __, event: posted.append(event.request.session))
    for _ in load.queries[1:]:
        loop.on_session_end(posted[-1], 1.0)
    assert len(posted) == len(load.queries)
    with pytest.raises(OutOfQueriesError, match="faster than"):
        loop.on_session_end(posted[-1], 1.0)
    assert RequestArrived(load.queries[0].request).request.session == posted[0]


@pytest.mark.parametrize("bounds", [(30.0, 120.0), (400.0,)])
def test_a_device_that_is_faster_than_was_prepared_for_gets_more_requests(
    bounds: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes some 44 tokens/s."""
    once = run_load_test(setup(), ALWAYS, replace(SHORT, attribution=True), 1, 0)
    monkeypatch.setattr(load_test, "MAX_TOKENS_PER_S", bounds)
    again = run_load_test(setup(), ALWAYS, replace(SHORT, attribution=True), 1, 0)
    assert (again.answers, again.violations, again.speeds) == (once.answers, once.violations, once.speeds)
    assert again.metrics["events"] == once.metrics["events"]


def test_a_device_that_is_faster_than_any_load_is_the_user_s_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_test, "MAX_TOKENS_PER_S", (10.0, 30.0))
    with pytest.raises(ValueError, match=r"faster than 30 tokens/s, .* choose a slower chip or a larger model"):
        run_load_test(setup(), ALWAYS, SHORT, 1, 0)


def test_the_load_test_times_decisions() -> None:
    figures = run_load_test(setup(), ALWAYS, SHORT, 3, 0).metrics
    assert 0 < figures["decision_ms_median"] <= figures["decision_ms_max"] < 1000
    assert 1 <= figures["queue_len_max"] <= 3


def test_speed_may_count_from_the_first_token() -> None:
    whole = run_load_test(setup(chosen=wisp_like()), ALWAYS, SHORT, 1, 0).speeds["c"]
    later = run_load_test(setup(), ALWAYS, replace(SHORT, speed_from="first_token"), 1, 0).speeds["c"]
    assert later > 1.5 * whole


def test_a_load_test_without_slo_classes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"workload\.slo"):
        run_load_test(setup(slo=()), ALWAYS, SHORT, 1, 0)
    with pytest.raises(ValueError, match="closed_loop"):
        run_load_test(setup(arrivals=Poisson()), ALWAYS, SHORT, 1, 0)
    with pytest.raises(ValueError, match="stagger_s"):
        LoadTest(warmup_s=1, stagger_s=2)


def test_a_load_of_heads_without_a_draft_model_says_nothing_of_wasted_drafts() -> None:
    """U-Medusa's candidates come from the cloud's model: some are verified, and no device drafts any."""
    observer = LoadObserver(
        0.0, 10.0, WindowCounts(emitted=60, drafts_verified=80, drafts_accepted=40, verifications=20)
    )
    figures = _window_metrics(observer, 10.0, 2)
    assert (figures["acceptance_rate"], figures["drafts_per_verification"]) == (0.5, 4)
    assert not [name for name in figures if name.startswith("wasted")]


def test_a_load_test_refuses_outages_and_nodes_that_fail() -> None:
    flaky = replace(setup(), network=link("flaky"))
    with pytest.raises(ValueError, match=r"network.outages, .* a load test has none.*outages=null"):
        run_load_test(flaky, ALWAYS, SHORT, 1, 0)


def test_an_answer_that_failed_is_late_however_fast_it_was() -> None:
    found = {}
    for ending in ("complete", "failed"):
        observer = LoadObserver(0.0, 10.0)
        observer.answers["r"] = AnswerTiming("r", 0.0)
        observer._tokens_emitted(EmitTokens("r", (1, 2, 3), ("cloud",) * 3, ending), 0.1)  # type: ignore[arg-type]
        load = SimpleNamespace(queries=[SimpleNamespace(
            request=SimpleNamespace(session="r", max_new_tokens=128), slo=SloClass(name="c", tokens_per_s=5.0)
        )])  # fmt: skip
        found[ending] = SloEvaluator(load, "asked").counts(observer)  # type: ignore[arg-type]
    assert found["complete"] == ({"c": 1}, {"c": 0}, {"c": pytest.approx(30)})
    assert found["failed"] == ({"c": 1}, {"c": 1}, {})
