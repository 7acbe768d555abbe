"""How long a round of drafting and verifying is predicted to take."""

from typing import Any

import pytest

from serving.hardware.latency import LinearLatency, batch_load, forward_load
from serving.messages import (
    INF,
    DraftBatch,
    DraftBatchOutcome,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    ForwardWork,
    SequenceSlice,
    SliceOutcome,
    Span,
    Verdict,
)
from serving.nodes.round_timing import ChipProfile, RoundTiming

LAYERS = 10
TARGET = LinearLatency(1e-4, 1e-8, 1e-6, 0.02, LAYERS, "", 5e-5, 1e-3, 2e-4)
DRAFTER = LinearLatency(1e-5, 1e-9, 1e-7, 0.002, 4, "", 5e-6)
WHOLE = Span(0, LAYERS, embedding=True, lm_head=True)
DRAFTED = DraftOutcome((7,), {}, ((7,),), False, 101)


def verification(sessions: int, cached: int, drafts: int) -> ForwardWork:
    slices = [
        SequenceSlice(f"s{i}", cached, drafts + 1, (7,) * (drafts + 1), drafts, "greedy") for i in range(sessions)
    ]
    return ForwardWork(WHOLE, tuple(slices), ("",) * sessions)


def verification_s(sessions: int, cached: int, drafts: int) -> float:
    return TARGET.seconds(forward_load(verification(sessions, cached, drafts)))


def verdicts(sessions: int, accepted: int) -> tuple[SliceOutcome, ...]:
    return (SliceOutcome(Verdict(accepted, 1), None),) * sessions


def prefill(tokens: int) -> ForwardWork:
    return ForwardWork(WHOLE, (SequenceSlice("a", 0, tokens, (7,) * tokens),), ("",))


def step(sessions: int, cached: int) -> DraftBatch:
    return DraftBatch(tuple([DraftWork(f"s{i}", cached, (7,), DraftStopRule(1)) for i in range(sessions)]))


def step_s(sessions: int, cached: int) -> float:
    return DRAFTER.seconds(batch_load(4, [(cached, 1)] * sessions, sessions))


def timing(sessions: int, cached: int, batch_drafts: bool = True, **limits: float) -> RoundTiming:
    found = RoundTiming(ChipProfile(TARGET, DRAFTER, **limits), batch_drafts)
    found.update([cached] * sessions)
    return found


@pytest.mark.parametrize("sessions", [1, 7, 64])
@pytest.mark.parametrize("drafts", [0, 1, 5])
def test_a_round_is_its_drafting_steps_and_its_verification(sessions: int, drafts: int) -> None:
    """By the coefficients that the chips are timed by."""
    wanted_s = drafts * step_s(sessions, 100) + verification_s(sessions, 100, drafts)
    assert sessions * timing(sessions, 100).round_s(drafts, 1.5) == pytest.approx(wanted_s, rel=0.02)


def test_without_batches_every_session_drafts_in_a_forward_of_its_own() -> None:
    found = timing(8, 100, batch_drafts=False)
    drafting_s = 8 * found.round_s(3, 2.0) - verification_s(8, 100, 3)
    assert drafting_s == pytest.approx(3 * 8 * step_s(1, 100), rel=0.02)


def test_a_pass_holds_no_more_sessions_than_the_scheduler_allows() -> None:
    assert timing(256, 100, max_sessions=64).round_s(2, 2.0) == timing(64, 100).round_s(2, 2.0)


def with_prompts(sessions: int, each: float, **limits: float) -> RoundTiming:
    """After passes that computed so many tokens of prompts for each token of an answer."""
    found = timing(sessions, 100, **limits)
    for _ in range(100):
        found.record(prefill(round(100 * each)), (SliceOutcome(None, None),), 1.0)
        found.record(verification(50, 100, 1), verdicts(50, 1), 1.0)
    plain = timing(sessions, 100, **limits)
    found._target_error, found._drafter_error = plain._target_error, plain._drafter_error
    return found


def test_a_pass_computes_prompts_too() -> None:
    """Two tokens a session, each with one of a prompt."""
    prompt_s = 64 * (with_prompts(64, 1.0).round_s(1, 2.0) - timing(64, 100).round_s(1, 2.0))
    assert prompt_s == pytest.approx(TARGET.a_s * 64 * 2.0, rel=0.05)


def test_where_prompts_and_drafts_fill_a_pass_it_holds_fewer_sessions() -> None:
    """256 tokens hold 51 sessions of three rows, whose two tokens take two of prompts."""
    full, free = with_prompts(64, 1.0, max_tokens=256), with_prompts(51, 1.0)
    assert full.round_s(2, 2.0) == pytest.approx(free.round_s(2, 2.0), rel=0.01)
    assert full.round_s(1, 1.7) == with_prompts(64, 1.0).round_s(1, 1.7)


def test_predictions_follow_what_recent_jobs_took() -> None:
    """A machine on which the target takes twice and the drafter thrice what the coefficients say."""
    found, plain = timing(4, 100), timing(4, 100)
    for _ in range(60):
        found.record(verification(4, 100, 2), verdicts(4, 1), 2 * verification_s(4, 100, 2))
        found.record(step(4, 100), DraftBatchOutcome((DRAFTED,) * 4), 3 * step_s(4, 100))
    found.update([100] * 4)
    assert found.round_s(0, 1.0) == pytest.approx(2 * plain.round_s(0, 1.0), rel=1e-3)
    assert 4 * (found.round_s(1, 1.7) - 2 * plain.round_s(1, 1.7)) == pytest.approx(step_s(4, 100), rel=0.05)


def test_a_prefill_does_not_bend_the_line() -> None:
    """A long first batch says nothing about a verification but that the coefficients hold."""
    found = timing(64, 100)
    before = [found.round_s(n, 1.0) for n in range(9)]
    found.record(prefill(2000), (SliceOutcome(None, None),), TARGET.seconds(forward_load(prefill(2000))))
    found.update([100] * 64)
    assert [found.round_s(n, 1.0) for n in range(9)] == pytest.approx(before)


def test_what_is_predicted_holds_until_the_next_update() -> None:
    found: Any = timing(64, 100, max_tokens=INF)
    before = found.round_s(3, 2.0)
    found.record(verification(4, 100, 2), verdicts(4, 1), 9.0)
    assert found.round_s(3, 2.0) == before
    found.update([100] * 64)
    assert found.round_s(3, 2.0) > before


def apart(sessions: int, cached: int) -> RoundTiming:
    found = RoundTiming(ChipProfile(TARGET, DRAFTER), True, apart=True)
    found.update([cached] * sessions)
    return found


def test_with_chips_of_its_own_half_the_sessions_draft_while_the_others_are_verified() -> None:
    """The longer of the two decides. Without drafts nothing takes turns, and with one session nothing overlaps."""
    drafting_s, pass_s = 6 * step_s(8, 100), verification_s(8, 100, 6)
    assert apart(16, 100).round_s(6, 2.0) == pytest.approx(max(drafting_s, pass_s) / 8, rel=0.02)
    assert apart(16, 100).round_s(0, 1.0) == timing(16, 100).round_s(0, 1.0)
    assert apart(1, 100).round_s(6, 2.0) == timing(1, 100).round_s(6, 2.0)
