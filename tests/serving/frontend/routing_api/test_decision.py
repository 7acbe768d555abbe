"""Routing decisions, state handles and cached sessions of the routing API."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.options import RoutingLimits
from serving.frontend.routing_api.handler import RoutingDecision, decide
from serving.frontend.routing_api.schema import PastDecision, RoutingRequest
from serving.frontend.routing_api.sessions import RoutingSessions, StateHandles
from tests.serving.frontend.routing_api.examples import routed

TEXT = (5, 6, 7)
ASKED = RoutingRequest(None, "the red key", " box", 3, None, (0.5, 0.0, 0.0), None, (), "s", "r", None)
HANDLES = StateHandles(b"secret")


def decided(
    how: Any = None, allowed: RoutingLimits | None = None, client: str = "c", **changes: Any
) -> RoutingDecision:
    return decide(replace(ASKED, **changes), TEXT, how or routed(), allowed or RoutingLimits(), HANDLES, client)


@pytest.mark.parametrize(
    ("side", "threshold", "route"),
    [("below", 0.6, "SLM"), ("below", 0.63, "LLM"), ("above", 0.6, "LLM"), ("above", 0.63, "SLM")],
)
def test_the_side_of_the_threshold_decides(side: Any, threshold: float, route: str) -> None:
    found = decided(routed(side), threshold=threshold)  # the score is 0.622
    assert (found.route, found.threshold) == (route, threshold)
    assert found.score == pytest.approx(0.6225, abs=1e-4)


def test_without_a_threshold_the_policys_is_used() -> None:
    assert decided().threshold == 0.5
    assert decided(routed(threshold=0.9)).route == "LLM"


@pytest.mark.parametrize(("asked", "used"), [(0.0, 0.3), (0.3, 0.3), (0.5, 0.5), (1.0, 0.6)])
def test_the_owners_limits_clamp_the_threshold(asked: float, used: float) -> None:
    found = decided(allowed=RoutingLimits(0.3, 0.6), threshold=asked)
    assert found.threshold == used
    assert any("moved into 0.3 to 0.6" in reason for reason in found.reasons) == (asked != used)


def test_small_only_mode_routes_nothing() -> None:
    found = decided(routed(mode="small_only"), threshold=1.0)
    assert found.route == "SLM"
    assert "small_only" in found.reasons[1]


@pytest.mark.parametrize("hidden", [(0.5,), (0.5, 0.0), (0.5, 0.0, 0.0, 0.0)])
def test_a_hidden_state_of_another_width_is_refused(hidden: tuple[float, ...]) -> None:
    with pytest.raises(ApiError, match=rf"is {len(hidden)} wide; this server's router reads 3"):
        decided(hidden_state=hidden)


_PAST = st.builds(PastDecision, st.text(max_size=5), st.sampled_from(["SLM", "LLM"]))


@given(
    history=st.lists(_PAST, max_size=6).map(tuple), handle=st.none() | st.text(min_size=1, max_size=80),
    token_index=st.integers(0, 99), current_token=st.text(min_size=1, max_size=8),
    threshold=st.none() | st.floats(0, 1), first=st.floats(-8, 8),
)  # fmt: skip
def test_claims_about_the_past_change_no_decision(
    history: Any, handle: str | None, token_index: int, current_token: str, threshold: float | None, first: float
) -> None:
    hidden = (first, 0.0, 0.0)
    honest = decided(threshold=threshold, hidden_state=hidden)
    lied = decided(
        threshold=threshold, hidden_state=hidden, history=history, state_handle=handle, token_index=token_index,
        current_token=current_token,
    )  # fmt: skip
    assert (lied.route, lied.score, lied.threshold) == (honest.route, honest.score, honest.threshold)


def test_a_history_that_contradicts_the_context_is_reported() -> None:
    past = tuple(PastDecision(token, "LLM") for token in ("red", "key"))
    assert not any("history" in reason for reason in decided(history=past).reasons)
    assert any("its token 0 is not" in r for r in decided(history=(PastDecision("blue", "SLM"),)).reasons)
    assert any("its token 1 is not" in r for r in decided(history=past[::-1]).reasons)


# Handles.


def test_a_handle_is_valid_for_its_client_session_and_text_only() -> None:
    handle = HANDLES.issue("c", "s", TEXT[:2])
    assert handle != HANDLES.issue("c", "s", TEXT[:1])
    assert HANDLES.mismatch(handle, "c", "s", TEXT) == ""
    assert not any("llm_state" in reason for reason in decided(state_handle=handle).reasons)
    for how in ({"client": "another"}, {"session_id": "t"}):
        assert any("llm_state was ignored" in reason for reason in decided(state_handle=handle, **how).reasons)
    for why in (
        HANDLES.mismatch(handle, "c", "s", (5, 9, 7)),
        HANDLES.mismatch(handle, "c", "s", (5,)),
        StateHandles().mismatch(handle, "c", "s", TEXT),
        StateHandles(b"secret").mismatch(handle.replace("v1.2", "v1.1"), "c", "s", TEXT),
    ):
        assert "not issued" in why
    # what is told apart by no separator is told apart by its length
    assert HANDLES.issue("a", "bc", TEXT) != HANDLES.issue("ab", "c", TEXT)


_MARKS = st.text("0123456789abcdef", min_size=64, max_size=64) | st.text("0123456789abcdef", min_size=1, max_size=80)
_GUESSES = st.builds("v1.{}.{}".format, st.integers(0, 12), _MARKS)


@given(handle=st.text(max_size=120) | _GUESSES)
def test_no_handle_can_be_guessed(handle: str) -> None:
    assert HANDLES.mismatch(handle, "c", "s", TEXT)


@given(guess=_GUESSES, text=st.lists(st.integers(0, 99), max_size=9).map(tuple))
def test_a_well_formed_guess_is_refused_and_an_issued_handle_accepted(guess: str, text: tuple[int, ...]) -> None:
    assert "not issued" in HANDLES.mismatch(guess, "c", "s", text)
    assert HANDLES.mismatch(HANDLES.issue("c", "s", text), "c", "s", (*text, 7)) == ""


# Sessions.


def test_a_cache_is_found_by_owner_and_tokens() -> None:
    forgotten: list[str] = []
    sessions = RoutingSessions(2, forgotten.append)
    first = sessions.acquire(("a", "s"), (1, 2, 3))
    sessions.store(("a", "s"), first, (1, 2, 3), (4,))
    other = sessions.acquire(("b", "s"), (1, 2, 3, 4, 5))
    assert first and other and other.shared_len == 0 and other.name != first.name  # noqa: PT018
    again = sessions.acquire(("a", "s"), (1, 2, 3, 4, 5))
    assert again and (again.name, again.shared_len) == (first.name, 4)  # noqa: PT018
    sessions.store(("a", "s"), again, (1, 2, 3, 4, 5), ())
    changed = sessions.acquire(("a", "s"), (1, 9))
    assert changed and changed.shared_len == 0  # noqa: PT018
    assert forgotten == [first.name]


def test_the_least_recently_used_session_is_evicted() -> None:
    forgotten: list[str] = []
    sessions = RoutingSessions(2, forgotten.append)
    for name in "abc":
        sessions.store(("", name), sessions.acquire(("", name), (1, 2)), (1, 2), (3,))
    assert (len(sessions), forgotten) == (2, ["route-1"])
    none = RoutingSessions(0, forgotten.append)
    none.store(("", "a"), none.acquire(("", "a"), (1, 2)), (1, 2), (3,))
    assert len(none) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_threshold": 0.7, "max_threshold": 0.3},
        {"min_threshold": -0.1},
        {"max_threshold": 1.1},
        {"max_tokens": 0},
        {"cached_sessions": -1},
    ],
)
def test_limits_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"service.endpoint.routing"):
        RoutingLimits(**wrong)
