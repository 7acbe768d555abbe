"""How long a round of drafting and verifying is predicted to take."""

import pytest

from serving.hardware.estimator import Estimator
from serving.hardware.latency import LayerScale, LinearLatency
from serving.messages import DraftBatch, DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span
from serving.nodes.round_timing import RoundTiming

LAYERS = 10
TARGET = Estimator(LinearLatency(1e-4, 1e-8, 1e-6, 0.02, LAYERS, "", 5e-5, 1e-3, 2e-4), LayerScale(LAYERS, LAYERS))
DRAFTER = Estimator(LinearLatency(1e-5, 1e-9, 1e-7, 0.002, 4, "", 5e-6))
WHOLE = Span(0, LAYERS, embedding=True, lm_head=True)


def verification(sessions: int, cached: int, drafts: int) -> ForwardWork:
    slices = [
        SequenceSlice(f"s{i}", cached, drafts + 1, (7,) * (drafts + 1), drafts, "greedy") for i in range(sessions)
    ]
    return ForwardWork(WHOLE, tuple(slices), ("",) * sessions)


def step(sessions: int, cached: int) -> DraftBatch:
    return DraftBatch(tuple([DraftWork(f"s{i}", cached, (7,), DraftStopRule(1)) for i in range(sessions)]))


def timing(sessions: int, cached: int, batch_drafts: bool = True) -> RoundTiming:
    found = RoundTiming(TARGET, DRAFTER, batch_drafts)
    found.update([cached] * sessions)
    return found


@pytest.mark.parametrize("sessions", [1, 7, 64])
@pytest.mark.parametrize("drafts", [0, 1, 5])
def test_a_round_is_its_drafting_steps_and_its_verification(sessions: int, drafts: int) -> None:
    """By the coefficients that the chips are timed by; a drafting step behind the first sees a few more tokens."""
    wanted = drafts * DRAFTER.drafts_s(step(sessions, 100).works) + TARGET.batch_s(verification(sessions, 100, drafts))
    assert timing(sessions, 100).round_s(drafts) == pytest.approx(wanted)


def test_without_batches_every_session_drafts_in_a_forward_of_its_own() -> None:
    each = DRAFTER.drafts_s(step(1, 100).works)
    found = timing(8, 100, batch_drafts=False)
    assert found.round_s(3) - TARGET.batch_s(verification(8, 100, 3)) == pytest.approx(3 * 8 * each)


def test_predictions_follow_what_recent_jobs_took() -> None:
    """A machine on which the target takes twice and the drafter thrice what the coefficients say."""
    found, plain = timing(4, 100), timing(4, 100)
    for _ in range(60):
        work = verification(4, 100, 2)
        found.record(work, 2 * TARGET.batch_s(work))
        found.record(step(4, 100), 3 * DRAFTER.drafts_s(step(4, 100).works))
    found.update([100] * 4)
    target_s = plain.round_s(0)
    assert found.round_s(0) == pytest.approx(2 * target_s, rel=1e-3)
    assert found.round_s(1) - 2 * plain.round_s(1) == pytest.approx(DRAFTER.drafts_s(step(4, 100).works), rel=1e-2)


def test_a_prefill_does_not_bend_the_line() -> None:
    """A long first batch says nothing about a verification but that the coefficients hold."""
    found = timing(64, 100)
    before = [found.round_s(n) for n in range(9)]
    prefill = ForwardWork(WHOLE, (SequenceSlice("a", 0, 2000, (7,) * 2000, 0, "greedy"),), ("",))
    found.record(prefill, TARGET.batch_s(prefill))
    found.update([100] * 64)
    assert [found.round_s(n) for n in range(9)] == pytest.approx(before)
