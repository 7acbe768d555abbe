"""Late verifications, and what made them late."""

from types import SimpleNamespace
from typing import Any

import pytest

from serving.messages import (
    INF,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    EmitTokens,
    ForwardWork,
    GenerationRequest,
    Hop,
    MessageReceived,
    Request,
    RequestArrived,
    SequenceSlice,
    Span,
    TreeRule,
)
from serving.studies.capacity.slo_evaluation import (
    AnswerTiming,
    LoadObserver,
    Round,
    SloEvaluator,
    VerificationObserver,
    VerificationTiming,
    lateness_shares,
)
from serving.workload.slo import SloClass

SPAN = Span(0, 1, True, True)
NO_EVENT: Any = None


def ask(watch: VerificationObserver, session: str, now: float, slack_s: float = INF, check: int = 2) -> SequenceSlice:
    seq = SequenceSlice(session, 0, 3, (1, 2, 3), check, "greedy")
    request = Request(0, seq, (Hop("cloud", SPAN),), 0, (), "device-0", slack_s=slack_s)
    watch.event_handled("cloud-0", MessageReceived(request), now, ())
    return seq


def run(watch: VerificationObserver, begin_s: float, end_s: float, *seq: SequenceSlice) -> None:
    watch.work_done("cloud-0", ForwardWork(SPAN, seq, ("last",) * len(seq)), (), begin_s, end_s)


def test_a_batch_slower_than_recent_ones_is_a_spike() -> None:
    watch = VerificationObserver(("cloud-0",), 0.0, 100.0, recent_batches=2)
    for begin_s, seconds in ((1, 5.0), (10, 1.0), (20, 1.0)):
        run(watch, begin_s, begin_s + seconds, ask(watch, "s", begin_s))
    run(watch, 30, 32, ask(watch, "s", 29.5, slack_s=1.0), ask(watch, "t", 30, slack_s=5.0))
    assert watch.verifications[-2:] == [
        VerificationTiming(0.5, 2.0, 2.0, True),
        VerificationTiming(0.0, 2.0, 2.0, False),
    ]
    assert watch.verifications[0].compute_ratio == 1


def test_only_verifications_within_the_window_are_events() -> None:
    watch = VerificationObserver(("cloud-0",), 10.0, 20.0)
    for begin_s in (9.0, 12.0, 21.0):
        run(watch, begin_s, begin_s + 1, ask(watch, "s", begin_s))
    run(watch, 13.0, 14.0, ask(watch, "s", 13.0, check=0))
    assert len(watch.verifications) == 1


def test_late_verifications_are_attributed_to_their_largest_delay() -> None:
    late = [VerificationTiming(0.1, 1.0, 1.6, True)] * 3 + [VerificationTiming(0.9, 0.5, 1.5, True)]
    found = lateness_shares([*late, *[VerificationTiming(0.0, 0.4, 1.0, False)] * 4])
    assert (found["events"], found["late_share"]) == (8, 0.5)
    assert (found["compute_dominant_share"], found["queue_dominant_share"]) == (0.75, 0.25)
    assert (found["late_by_compute/compute_s"], found["late_by_queue/queue_s"], found["in_time/compute_s"]) == (
        1.0,
        0.9,
        0.4,
    )
    assert lateness_shares([]) == {}


@pytest.mark.parametrize("speed_from", ["asked", "first_token"])
def test_answers_that_may_still_be_in_time_when_a_run_stops_are_not_late(speed_from: Any) -> None:
    """100 answers of 10 tokens at 1 token/s: 24 ended too slowly, 23 in time; 53 came 5 s before the run stopped."""
    promised = SloClass(name="c", tokens_per_s=1)
    requests = [SimpleNamespace(session=str(i), max_new_tokens=10) for i in range(100)]
    load: Any = SimpleNamespace(queries=[SimpleNamespace(request=one, slo=promised) for one in requests])
    ended = [AnswerTiming(str(i), 0.0, 10, 0.1, seconds, seconds) for i, seconds in enumerate([20.0] * 24 + [5.0] * 23)]
    open_answers = [AnswerTiming(str(i), 20.0, 4, 20.1, 24.0) for i in range(47, 100)]
    observer = LoadObserver(0.0, 25.0, answers={one.session: one for one in (*ended, *open_answers)})
    evaluator = SloEvaluator(load, speed_from)
    assert evaluator.is_decided(observer, 25.0, 0.15)
    assert evaluator.counts(observer, 25.0)[:2] == ({"c": 100}, {"c": 24})
    assert evaluator.counts(observer)[:2] == ({"c": 100}, {"c": 77})


def test_an_open_answer_that_began_in_time_is_not_late_yet() -> None:
    """A second is promised for the first token, ten for the answer; 5 s, 5 s and half a second after the requests."""
    promised = SloClass(name="c", tokens_per_s=1, ttft_s=1.0)
    requests = [SimpleNamespace(session=str(i), max_new_tokens=10) for i in range(3)]
    load: Any = SimpleNamespace(queries=[SimpleNamespace(request=one, slo=promised) for one in requests])
    answers = AnswerTiming("0", 20.0, 4, 20.5, 24.0), AnswerTiming("1", 20.0), AnswerTiming("2", 24.5)
    observer = LoadObserver(0.0, 25.0, answers={one.session: one for one in answers})
    assert SloEvaluator(load, "asked").counts(observer, 25.0)[:2] == ({"c": 3}, {"c": 1})


def test_a_round_is_late_by_its_own_tokens_and_time() -> None:
    """An answer of 12 tokens in 3 s keeps a promise of 4 tokens/s, but one of its rounds takes 1.5 s for 3 tokens.

    The first counts from the request, and only those that end within the window count.
    """
    observer = LoadObserver(10.0, 20.0)
    for session, arrived_s in (("before", 8.0), ("s", 11.0), ("after", 19.9)):
        observer.event_handled("device-0", RequestArrived(GenerationRequest(session, (1,), 12)), arrived_s, ())
    emitted = (
        ("before", 9.0, 2, ""),
        ("before", 10.5, 3, ""),
        ("s", 12.0, 4, ""),
        ("s", 12.5, 5, ""),
        ("s", 14.0, 3, ""),
    )
    for session, now, n, ending in (*emitted, ("s", 14.0, 0, "complete"), ("after", 20.0, 4, "")):
        emit: Any = EmitTokens(session, (1,) * n, ("cloud",) * n, ending)  # type: ignore[arg-type]
        observer.event_handled("device-0", NO_EVENT, now, (emit,))
    assert observer.rounds == [Round("before", 3, 1.5), Round("s", 4, 1.0), Round("s", 5, 0.5), Round("s", 3, 1.5)]
    fast, slow = SloClass(name="fast", tokens_per_s=4), SloClass(name="slow", tokens_per_s=2)
    queries = [SimpleNamespace(request=SimpleNamespace(session=name, max_new_tokens=12), slo=promised)
               for name, promised in (("before", slow), ("s", fast), ("after", fast))]  # fmt: skip
    load: Any = SimpleNamespace(queries=queries)
    evaluator = SloEvaluator(load, "asked")
    assert evaluator.round_counts(observer) == ({"slow": 1, "fast": 3}, {"slow": 0, "fast": 1})
    assert evaluator.counts(observer)[:2] == ({"fast": 2}, {"fast": 1})


@pytest.mark.parametrize(
    ("rule", "branches", "drafted", "count"),
    [
        (DraftStopRule(4), (), DraftOutcome((7, 8, 9), {}, (), False, 12), 3),
        (DraftStopRule(4), (), DraftOutcome((7, 8), {}, (), True, 12), 3),  # and one that the stop rule dropped
        (DraftStopRule(4, tree=TreeRule(2, 2)), (), DraftOutcome((7, 8, 9), {}, (), False, 10, parents=(-1, -1, 0)), 3),
        (DraftStopRule(1), ((5,), (6,)), DraftOutcome((7, 8), {}, (), False, 8), 2),
        (DraftStopRule(0), (), DraftOutcome((), {}, (), False, 10), 0),
    ],
)
def test_drafts_are_counted_whatever_their_shape(
    rule: DraftStopRule, branches: Any, drafted: DraftOutcome, count: int
) -> None:
    observer = LoadObserver(0.0, 10.0)
    work = DraftWork("s", 8, () if branches else (1, 2), rule, branches=branches)
    observer.work_done("device-0", work, drafted, 1.0, 2.0)
    assert observer.counts.drafted == count
