"""Seconds a token under a steady load, against what the link and the chips make them."""

from dataclasses import replace

import pytest

from serving.runtimes.clients import UnfinishedSessionsError
from serving.studies.winners import steady_state
from serving.studies.winners.place import Place
from serving.studies.winners.steady_state import SteadyLoad, SteadyState, make_queries, measure
from tests.serving.studies.winners.contest_setup import contest, outcomes

DECODING = Place(0.0, 0.8, "fast", 1)


def test_a_decoded_token_takes_a_pass_and_its_share_of_the_round_trip() -> None:
    found = {
        rtt: contest().run(contest().simulation("cloud_decoding", replace(DECODING, round_trip_ms=rtt)))[0]
        for rtt in (0.0, 120.0)
    }
    assert len(found[0.0].s_per_token) == 4
    near, far = (found[rtt].mean_s_per_token for rtt in (0.0, 120.0))
    assert far - near == pytest.approx(2 * 0.060 / 12, rel=0.05)  # an answer has 12 tokens, which stream
    assert found[0.0].busy_s_per_token == pytest.approx(near, rel=0.1)  # one device, which waits for the cloud alone


def test_each_device_has_as_many_counted_answers_as_are_asked_for() -> None:
    load = SteadyLoad(min_answers=10)
    assert [load.counted_turns(n) for n in (1, 3, 10, 256)] == [10, 4, 1, 1]
    states = contest(min_answers=10).run(contest().simulation("device_drafts", replace(DECODING, num_devices=3)))
    assert [len(one.s_per_token) for one in states] == [12, 12]


def test_devices_go_on_asking_behind_their_counted_answers() -> None:
    """One that does not count, four that do, and two that keep the load up until the slowest of them ends."""
    setup = contest().setup_of(contest().simulation("cloud_decoding", DECODING))
    assert len(make_queries(setup, outcomes(), SteadyLoad(4), 0, 0)) == 7


def test_more_devices_make_a_token_slower_and_cheaper() -> None:
    one, many = (
        contest().run(contest().simulation("cloud_decoding", replace(DECODING, num_devices=n)))[0] for n in (1, 16)
    )
    assert many.mean_s_per_token > one.mean_s_per_token
    assert many.busy_s_per_token < one.busy_s_per_token / 3


def test_the_same_seed_gives_the_same_state() -> None:
    simulation = contest().simulation("device_drafts", DECODING)
    first, again = contest().run(simulation), contest().run(simulation)
    assert first == again
    assert first[0] != first[1]


def test_the_share_of_late_answers() -> None:
    state = SteadyState((0.1, 0.2, 0.3, 0.5), 0.0)
    assert [state.late_share(speed) for speed in (1, 4, 6, 20)] == [0, 0.5, 0.75, 1]


def test_a_load_that_is_never_answered_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_state, "LONGEST_S", 0.0)
    monkeypatch.setattr(steady_state, "STEP_S", 1e-9)
    setup = contest().setup_of(contest().simulation("cloud_decoding", DECODING))
    with pytest.raises(UnfinishedSessionsError, match="policy cloud_centric answers nothing"):
        measure(setup, outcomes(), SteadyLoad(), 0)


def test_a_load_needs_answers() -> None:
    with pytest.raises(ValueError, match="min_answers=0 must be 1 or more"):
        SteadyLoad(min_answers=0)
