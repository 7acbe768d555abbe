"""Drafts as long as they pay: none under load, all without a measurement, more on a chip that drafts fast."""

import pytest

from serving.core.link_monitor import DeviceMonitor
from serving.core.session import Session
from serving.hardware.latency import LinearLatency
from serving.messages import GenerationRequest
from serving.nodes.round_timing import ChipProfile, RoundTiming
from serving.policy.slots.draft import GoodputDraft

DRAFT = GoodputDraft(8)


def linear(row_s: float, base_s: float) -> LinearLatency:
    return LinearLatency(row_s, 0.0, 0.0, base_s, 10, "by hand")


def session(
    num_sessions: int, drafter: LinearLatency, accepted: int = 70, row_s: float = 5.6e-4, limit: int = 100
) -> Session:
    """One of so many sessions on a chip whose passes take 50 ms and `row_s` a row. Of 100 drafts so many are right."""
    timing = RoundTiming(ChipProfile(linear(row_s, 0.05), drafter), batch_drafts=True)
    timing.update([20] * num_sessions)
    monitor = DeviceMonitor(drafts_accepted=accepted, drafts_reached=100, round_s=timing.round_s)
    return Session(GenerationRequest("a", (1, 2), limit), 0, monitor)


def slow(base_s: float = 3e-3) -> LinearLatency:
    return linear(0.0, base_s)


def test_without_measurements_it_drafts_k() -> None:
    assert DRAFT.best_length(Session(GenerationRequest("a", (1, 2), 100), 0)) == 8


def test_until_k_drafts_are_judged_it_drafts_k() -> None:
    one = session(64, slow())
    one.monitor.drafts_accepted = one.monitor.drafts_reached = 7
    assert DRAFT.best_length(one) == 8
    one.monitor.drafts_reached = 8
    assert DRAFT.best_length(one) < 8


def test_the_more_sessions_the_fewer_drafts() -> None:
    lengths = [DRAFT.best_length(session(n, slow())) for n in (1, 4, 16, 64, 256, 1024)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 4 > lengths[3] > 0


def test_under_load_it_drafts_nothing_where_drafting_slows_the_batch() -> None:
    """Tokens a second with one draft: 1.7 / (step + pass of 2 n rows), without: 1 / (pass of n rows)."""
    one = session(1024, slow(), accepted=5)
    assert DRAFT.best_length(one) == 0
    assert DRAFT.next_stop(one) is None


def test_a_fast_drafter_drafts_further() -> None:
    assert DRAFT.best_length(session(1, linear(0.0, 1e-6), accepted=95)) == 8
    assert DRAFT.best_length(session(1, slow(0.03))) < DRAFT.best_length(session(1, slow(0.003)))


@pytest.mark.parametrize("num_sessions", [1, 16, 64, 256])
@pytest.mark.parametrize("accepted", [20, 50, 70, 90])
def test_no_other_length_promises_more_tokens_a_second(num_sessions: int, accepted: int) -> None:
    one = session(num_sessions, slow(), accepted)
    a = (accepted + DRAFT.acceptance) / 101
    rates = [(1 - a ** (n + 1)) / (1 - a) / (n * 0.003 + 0.05 + 5.6e-4 * num_sessions * (n + 1)) for n in range(9)]
    assert rates[DRAFT.best_length(one)] == pytest.approx(max(rates))


def test_a_draft_ends_at_that_length_and_at_the_answers_end() -> None:
    one = session(64, slow())
    best = DRAFT.best_length(one)
    stop = DRAFT.next_stop(one)
    assert stop is not None
    assert stop.max_tokens == best
    one.draft = [5] * best
    assert DRAFT.next_stop(one) is None
    short = session(1, slow(), limit=1)
    rule = DRAFT.next_stop(short)
    assert rule is not None
    assert rule.max_tokens == 1
