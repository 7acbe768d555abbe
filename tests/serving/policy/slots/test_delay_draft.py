"""How far a device drafts for a target that is far away: by the stopping rule, and by a learned length."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pytest

from serving.core.draft_round import DraftRound
from serving.core.link_monitor import DeviceMonitor
from serving.core.session import Session
from serving.messages import DraftOutcome, DraftStopRule, GenerationRequest
from serving.policy.slots.delay_draft import (
    DelayAdaptiveDraft,
    LengthBandit,
    PathDraft,
    RoundRates,
    UCBSpecStop,
    path_stop,
)

STEP_S = 0.05


def session(confidence: Sequence[float] = (), left: int = 99, monitor: DeviceMonitor | None = None) -> Session:
    """A session with a draft of these scores, and room for `left` tokens."""
    one = Session(GenerationRequest("s", (1, 2), left), 0, monitor)
    if confidence:
        n = len(confidence)
        one.add_draft(DraftOutcome((5,) * n, {"confidence": tuple(confidence)}, ((5,),) * n, False, n + 1))
    return one


def rounds(acceptance: float, delay_s: float, length: Callable[[], int], seed: int = 1) -> Iterator[DraftRound]:
    """Rounds whose drafts are right with the same probability, which is their confidence."""
    draw = random.Random(seed)
    while True:
        n = length()
        accepted = next(i for i in count() if i == n or draw.random() >= acceptance)
        yield DraftRound(n, accepted, n * STEP_S, delay_s, (acceptance,) * n)


def best_length(acceptance: float, delay_s: float) -> int:
    """The fixed length with most tokens a second, by the closed form."""
    return max(range(1, 65), key=lambda n: tokens_per_s(acceptance, delay_s, n))


def tokens_per_s(acceptance: float, delay_s: float, n: int) -> float:
    return sum(acceptance**i for i in range(n + 1)) / (n * STEP_S + delay_s)


def stopped_length(learned: RoundRates, acceptance: float, k: int = 64) -> int:
    """Where the rule stops if every confidence is `acceptance`."""
    threshold = learned.path_threshold
    return next((n for n in range(1, k) if acceptance**n < threshold), k)


def mean_length(acceptance: float, delay_s: float) -> float:
    """Of the stopping rule, after 500 rounds."""
    learned, lengths = RoundRates(), list[int]()
    play = rounds(acceptance, delay_s, lambda: stopped_length(learned, acceptance))
    for _ in range(1500):
        done = next(play)
        learned.record(done)
        lengths.append(done.num_drafts)
    return sum(lengths[500:]) / 1000


def test_the_threshold_is_what_a_drafting_step_costs_over_the_chance_of_the_next_draft():
    """2 tokens in 0.5 s; a step takes 0.1 s, so that a token must be expected with 0.4. The next draft is right with
    0.4: of 1 later draft none was right, and 4 are assumed as likely as all drafts, (1 + 2) / (2 + 4).
    """
    learned = RoundRates()
    assert learned.path_threshold == 0
    learned.record(DraftRound(2, 1, 0.2, 0.3))
    assert learned.next_acceptance == pytest.approx(0.4)
    assert learned.path_threshold == pytest.approx(1.0)
    learned.record(DraftRound(2, 2, 0.2, 30.0))
    assert learned.path_threshold < 0.1


@pytest.mark.parametrize("delay_s", [3.2, 6.4, 12.8])
def test_doubling_the_delay_adds_a_constant_to_the_length(delay_s: float):
    """log 2 / log (1 / 0.8) = 3.1 tokens, less what the longer draft itself adds to the round."""
    length, doubled = mean_length(0.8, delay_s), mean_length(0.8, 2 * delay_s)
    best = tokens_per_s(0.8, delay_s, best_length(0.8, delay_s))
    assert tokens_per_s(0.8, delay_s, round(length)) > 0.995 * best
    assert 2 < doubled - length < 4


def test_one_token_is_drafted_below_the_critical_delay():
    a = 0.7
    critical_s = STEP_S * (1 + a - a * a) / (a * a)
    assert tokens_per_s(a, critical_s, 1) == pytest.approx(tokens_per_s(a, critical_s, 2))
    assert mean_length(a, 0.6 * critical_s) < 1.1
    assert mean_length(a, 1.6 * critical_s) > 1.9


def test_acceptance_is_calibrated_by_confidence():
    """A drafter that is too sure: of confidence c, c squared are right."""
    draw, learned = random.Random(2), RoundRates()
    for _ in range(3000):
        confidence = [draw.uniform(0.2, 1.0) for _ in range(6)]
        accepted = next((i for i, c in enumerate(confidence) if draw.random() >= c * c), 6)
        learned.record(DraftRound(6, accepted, 0.3, 0.1, confidence))
    assert learned.sharpness == pytest.approx(2.0, rel=0.07)


def test_a_change_of_the_delay_changes_the_length_within_some_rounds():
    learned = RoundRates()
    for delay_s, low, high in ((0.05, 1, 2), (6.4, 10, 18), (0.05, 1, 2)):
        play = rounds(0.8, delay_s, lambda: stopped_length(learned, 0.8))
        for _ in range(150):
            learned.record(next(play))
        assert low <= stopped_length(learned, 0.8) <= high


def test_a_draft_goes_on_in_pieces_as_in_one():
    """What is left of the threshold after the pieces so far is that of the next piece."""
    assert path_stop(session(), 8, 0.5) == DraftStopRule(8, "confidence", 0.5, product=True)
    rule = path_stop(session((0.9, 0.8)), 6, 0.5)
    assert rule is not None
    assert rule.threshold == pytest.approx(0.5 / 0.72)
    assert rule.level(rule.level(1.0, 0.9), 0.8) == pytest.approx(0.72)
    assert path_stop(session((0.9, 0.8, 0.6)), 5, 0.5) is None
    assert path_stop(session(), 0, 0.5) is None


@pytest.mark.parametrize("draft", [PathDraft(8, 0.1), DelayAdaptiveDraft(8), UCBSpecStop(8)])
def test_a_draft_fits_into_the_answer(draft: PathDraft | DelayAdaptiveDraft | UCBSpecStop):
    monitor = DeviceMonitor(learner=None if isinstance(draft, PathDraft) else draft.new_learner())
    for confidence, left, room in (((), 99, 8), ((), 3, 3), ((0.9, 0.9), 5, 3), ((0.9,) * 8, 99, None)):
        stop = draft.next_stop(session(confidence, left, monitor))
        assert (stop.max_tokens if stop else None) == room


def test_a_draft_that_its_score_has_ended_stays_ended():
    """Whatever another session's verdict has taught in between."""
    one = session((0.3,))
    one.stopped = True
    assert PathDraft(8, 0.1).next_stop(one) is None


@pytest.mark.parametrize("delay_s", [0.05, 0.4, 3.2])
@pytest.mark.parametrize("prefixes", [True, False])
def test_the_bandit_finds_the_best_arm(delay_s: float, prefixes: bool):
    learned = LengthBandit(16, 0.1, 1000, prefixes)
    played = list[int]()
    play = rounds(0.8, delay_s, lambda: learned.best_length)
    for _ in range(3000):
        done = next(play)
        learned.record(done)
        played.append(done.num_drafts)
    best = tokens_per_s(0.8, delay_s, best_length(0.8, delay_s))
    last = played[-1000:]
    found = sum(sum(0.8**i for i in range(n + 1)) for n in last) / sum(n * STEP_S + delay_s for n in last)
    assert found > 0.95 * best
    assert tokens_per_s(0.8, delay_s, max(set(last), key=last.count)) > 0.97 * best


def test_a_round_shows_what_shorter_drafts_would_have_yielded():
    learned, alone = LengthBandit(4, 0.1, 0, True), LengthBandit(4, 0.1, 0, False)
    for bandit in (learned, alone):
        assert bandit.best_length == 4
        bandit.record(DraftRound(4, 2, 0.4, 1.0))
    assert learned.rounds[1:] == [1, 1, 1, 1]
    assert learned.tokens[1:] == [2, 3, 3, 3]
    assert learned.seconds[1:] == pytest.approx([1.1, 1.2, 1.3, 1.4])
    assert alone.rounds[1:] == [0, 0, 0, 1]
    assert alone.best_length == 3
    assert learned.index(2, 0.0) == pytest.approx(3 / 1.2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: DelayAdaptiveDraft(0),
        lambda: PathDraft(8, 1.0),
        lambda: UCBSpecStop(8, exploration=-1.0),
        lambda: UCBSpecStop(8, memory_rounds=1),
    ],
)
def test_options_out_of_range_are_refused(wrong: Callable[[], object]):
    with pytest.raises(ValueError, match=r"policy\.draft"):
        wrong()


def test_thousands_of_right_drafts_of_low_confidence_leave_a_rule() -> None:
    """Confidence says nothing any more, and a token takes the device longer than a round gives one: one is drafted."""
    monitor = DeviceMonitor(learner=RoundRates())
    assert isinstance(monitor.learner, RoundRates)
    for _ in range(9000):
        monitor.learner.record(DraftRound(1, 1, STEP_S, 0.01, (0.5,)))
    draft = DelayAdaptiveDraft(6)
    first = draft.next_stop(session(monitor=monitor))
    assert first is not None
    assert first.threshold > 1
    assert draft.next_stop(session([0.5], monitor=monitor)) is None
