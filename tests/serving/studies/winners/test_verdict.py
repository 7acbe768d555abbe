"""Who wins, and what ties."""

from math import inf

import pytest

from serving.studies.winners.steady_state import SteadyState
from serving.studies.winners.verdict import Verdict, cheapest, cheapest_in_time, fastest, ratio_interval, winner


def states(*by_seed: tuple[float, float]) -> tuple[SteadyState, ...]:
    return tuple(SteadyState((s_per_token,), busy_s) for s_per_token, busy_s in by_seed)


FAST, CHEAP, DEAR = (
    states((0.10, 0.010), (0.11, 0.011)),
    states((0.20, 0.005), (0.22, 0.0055)),
    states((0.30, 0.020), (0.33, 0.022)),
)
CONTENDERS = {"cheap": CHEAP, "dear": DEAR, "fast": FAST}


def test_the_lowest_mean_wins() -> None:
    assert fastest(CONTENDERS, 0.05).text == "fast"
    assert cheapest({"dear": DEAR, "fast": FAST}, 0.05).text == "fast"
    assert winner({"a": [2.0, 2.0], "b": [1.0, 1.0]}, 0.05) == Verdict(("b",))


def test_who_is_within_the_margin_ties() -> None:
    values = {"a": [1.0, 1.0], "b": [1.04, 1.04], "c": [1.06, 1.06]}
    assert winner(values, 0.05).text == "a = b"
    assert winner(values, 0.0).text == "a"
    assert winner(values, 0.10).best == ("a", "b", "c")


def test_who_beats_the_best_under_a_seed_may_tie() -> None:
    """Ratios of 1.5, 0.9 and 1.2: mean 1.2, and Student's t over three seeds reaches below 1; of 1.18 to 1.22 not."""
    best = [1.0, 1.0, 1.0]
    low, mean, high = ratio_interval([1.5, 0.9, 1.2], best)
    assert (mean, high - mean) == (pytest.approx(1.2), pytest.approx(4.303 * 0.3 / 3**0.5))
    assert low < 1
    assert winner({"a": best, "b": [1.5, 0.9, 1.2]}, 0.05).text == "a = b"
    assert winner({"a": best, "b": [1.18, 1.22, 1.2]}, 0.05).text == "a"
    assert ratio_interval([1.2], [1.0]) == (1.2, 1.2, 1.2)


def test_who_costs_nothing_wins_and_ties_with_who_costs_nothing() -> None:
    assert winner({"a": [1.0, 2.0], "b": [0.0, 0.0], "c": [0.0, 0.0]}, 0.05).text == "b = c"
    assert winner({"a": [1.0, 2.0], "b": [0.0, 1.0]}, 0.05).text == "b"
    assert ratio_interval([1.0, 2.0], [0.0, 1.0]) == (inf, inf, inf)


def test_a_promise_leaves_those_that_keep_it() -> None:
    assert cheapest_in_time(CONTENDERS, 4.0, 0.05, 0.05).text == "cheap"
    assert cheapest_in_time(CONTENDERS, 6.0, 0.05, 0.05).text == "fast"
    assert cheapest_in_time(CONTENDERS, 20.0, 0.05, 0.05).text == "none"
    assert cheapest_in_time(CONTENDERS, 20.0, 1.0, 0.05).text == "cheap"


def test_verdicts_differ_if_they_share_no_contender() -> None:
    assert Verdict(("a", "b")).differs(Verdict(("c",)))
    assert not Verdict(("a", "b")).differs(Verdict(("c", "b")))
