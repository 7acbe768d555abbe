"""HAT's lookahead while the cloud verifies (section 3.5): the assumed verdicts and the number of steps."""

from typing import Any

import pytest

from serving.core.link_monitor import DeviceMonitor, LinkRate, MovingAverage
from serving.core.session import Branch, Session
from serving.messages import DraftOutcome, GenerationRequest, PathStats, Verdict
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.lookahead import HATLookahead

KNOWN = PathStats(mean_batch_tokens=5.0, base_s=0.02, per_token_s=0.001, num_nodes=1, uplink_mbps=8.0)
WINDOW = WindowDraft(8, "confidence", 0.6)


def in_flight(n: int = 3, monitor: DeviceMonitor | None = None, limit: int = 20) -> Session:
    """A session that has sent its draft 10, 11, 12 ..., whose other candidates are 20, 21 ... and 30, 31 ..."""
    s = Session(GenerationRequest("s", (1, 2, 3), limit), 0, monitor)
    tokens = tuple(range(10, 10 + n))
    s.add_draft(DraftOutcome(tokens, {"confidence": (0.9,) * n}, tuple((t, t + 10, t + 20) for t in tokens), True, 5))
    s.start_verification(True, "greedy")
    return s


def knowing(step_s: float = 0.004, up: float = 8.0, down: float = 16.0) -> DeviceMonitor:
    """8,000 bytes a row: 8 ms up and 4 ms down; g(5) = 25 ms."""
    condition = PathStats(KNOWN.mean_batch_tokens, KNOWN.base_s, KNOWN.per_token_s, KNOWN.num_nodes, up)
    return DeviceMonitor(8000, MovingAverage(step_s), LinkRate(down * 125_000 or None), condition)


# Which verdicts.


@pytest.mark.parametrize(
    ("k", "wanted"), [(1, ((3, None),)), (2, ((3, None), (2, 22))), (3, ((3, None), (2, 22), (2, 32)))]
)
def test_assumed_verdicts_are_full_acceptance_or_another_last_token(k: int, wanted: Any) -> None:
    assert HATLookahead(k).assumed_verdicts(in_flight()) == wanted


def test_without_drafts_no_verdict_is_assumed() -> None:
    s = Session(GenerationRequest("s", (1, 2, 3), 20), 0)
    s.start_verification(True, "greedy")
    assert HATLookahead().assumed_verdicts(s) == ()


@pytest.mark.parametrize("k", [0, 4])
def test_no_more_candidates_than_a_drafter_names(k: int) -> None:
    with pytest.raises(ValueError, match="its 1 to 3 likeliest tokens"):
        HATLookahead(k)


# How far: Eq. 6.


@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("step_s", [0.0101, 0.0043, 0.03])
def test_lookahead_steps_fit_into_the_time_of_the_fastest_verdict(drafts: int, step_s: float) -> None:
    rows = drafts + 1  # the token before the drafts travels again
    away_s = rows * 0.008 + 0.025 + rows * 0.004
    s = in_flight(drafts, knowing(step_s))
    assert HATLookahead(max_steps=1000).num_steps(s) == int(away_s / step_s)
    assert HATLookahead(max_steps=2).num_steps(s) == min(2, int(away_s / step_s))


def test_no_step_fits_before_an_immediate_verdict() -> None:
    s = in_flight(1, knowing(step_s=0.5))
    assert HATLookahead().num_steps(s) == 0
    s.branches = [Branch(1, None)]
    assert s.growing_branches(0) == []


def test_every_branch_takes_as_many_steps() -> None:
    """Behind all drafts the first one finds the token that stands in for the target's."""
    s = in_flight()
    s.branches = [Branch(3, None), Branch(2, 22)]
    while growing := s.growing_branches(2):
        step(s, growing, 0.9, WindowDraft(8))
    assert [len(branch.tokens) for branch in s.branches] == [1, 2]


@pytest.mark.parametrize(
    "monitor",
    [None, knowing(up=0.0), knowing(down=0.0), knowing(step_s=0.0), DeviceMonitor(8000, MovingAverage(0.004))],
)
def test_lookahead_takes_its_most_steps_until_the_link_is_measured(monitor: DeviceMonitor | None) -> None:
    assert HATLookahead(max_steps=9).num_steps(in_flight(monitor=monitor)) == 9


# Where a branch ends.


def step(s: Session, branches: list[Branch], sure: float, draft: WindowDraft = WINDOW, token: int = 50) -> None:
    n = len(branches)
    tops = tuple((token, token + 1, token + 2) for _ in branches)
    s.extend_branches(
        DraftOutcome((token,) * n, {"confidence": (sure,) * n}, tops, False, 5),
        branches,
        draft.should_stop,
        draft.keep_last,
    )


def grown(s: Session, *sure: float, draft: WindowDraft = WINDOW) -> Branch:
    """A branch behind another candidate in the last place, so many tokens long as it lets itself be made."""
    branch = Branch(2, 22)
    s.branches = [branch]
    for i, each in enumerate(sure):
        if not s.growing_branches(12):
            break
        step(s, [branch], each, draft, 50 + i)
    return branch


def test_a_branch_ends_with_the_token_below_the_threshold() -> None:
    branch = grown(in_flight(), 0.9, 0.7, 0.5, 0.9)
    assert branch.tokens == [50, 51, 52]
    assert branch.scores == {"confidence": [0.9, 0.7, 0.5]}
    assert len(branch.top_candidates) == 3
    assert branch.stopped


def test_the_token_below_the_threshold_is_dropped_without_keep_last() -> None:
    branch = grown(in_flight(), 0.9, 0.7, 0.5, 0.9, draft=WindowDraft(8, "confidence", 0.6, keep_last=False))
    assert branch.tokens == [50, 51]
    assert branch.scores == {"confidence": [0.9, 0.7]}
    assert len(branch.top_candidates) == 2
    assert branch.stopped


def test_the_first_token_of_a_branch_is_never_dropped() -> None:
    branch = grown(in_flight(), 0.5, 0.9, draft=WindowDraft(8, "confidence", 0.6, keep_last=False))
    assert branch.tokens == [50]
    assert branch.stopped


def test_a_branch_without_a_stop_rule_grows_to_the_limit() -> None:
    s = in_flight()
    branch = grown(s, *[0.1] * 20, draft=WindowDraft(8))
    assert len(branch.tokens) == 12
    assert not branch.stopped


def test_the_drafters_next_token_is_assumed_to_be_the_targets() -> None:
    s = in_flight()
    branch = Branch(3, None)
    s.branches = [branch]
    step(s, [branch], 0.1)
    assert (branch.token, branch.tokens, branch.stopped) == (50, [], False)
    assert s.growing_branches(12) == [branch]


@pytest.mark.parametrize(("sure", "wanted"), [((0.9, 0.5), None), ((0.9, 0.9), 6)])
def test_an_adopted_branch_is_extended_unless_it_stopped(sure: tuple[float, ...], wanted: int | None) -> None:
    s = in_flight()
    grown(s, *sure)
    s.apply_verdict(Verdict(2, 22))
    assert s.draft == [50, 51]
    stop = WINDOW.next_stop(s)
    assert (stop and stop.max_tokens) == wanted


def test_an_adopted_branch_whose_last_token_was_dropped_is_not_extended() -> None:
    """Its scores do not show why it stopped."""
    window = WindowDraft(8, "confidence", 0.6, keep_last=False)
    s = in_flight()
    grown(s, 0.9, 0.5, draft=window)
    s.apply_verdict(Verdict(2, 22))
    assert s.draft == [50]
    assert s.stopped
    assert window.next_stop(s) is None


@pytest.mark.parametrize("verdict", [Verdict(2, 99), Verdict(3, 22), Verdict(0, 10)])
def test_branches_of_other_verdicts_are_dropped(verdict: Verdict) -> None:
    s = in_flight()
    grown(s, 0.9, 0.5)
    s.apply_verdict(verdict)
    assert s.draft == []
    assert not s.stopped
    assert WINDOW.next_stop(s) is not None


def test_no_branch_is_longer_than_the_rest_of_the_answer() -> None:
    """Two drafts, the guessed token, and so many behind it as may still be written."""
    s = in_flight(limit=5)
    assert len(grown(s, *[0.9] * 9).tokens) == 5 - 2 - 1


def test_it_asks_for_measurements_of_the_link() -> None:
    """A policy whose prefill measures nothing has none otherwise."""
    assert HATLookahead(num_candidates=3, max_steps=4).monitors_link
