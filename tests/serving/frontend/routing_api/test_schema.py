"""The routing API's schema: Figure 5 in, and nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.frontend.openai.errors import ApiError
from serving.frontend.routing_api import schema
from serving.frontend.routing_api.schema import PastDecision, RoutingRequest, RoutingResponse, parse_request
from tests.serving.frontend.routing_api.examples import question, state


def parsed(**changes: Any) -> RoutingRequest:
    return parse_request(json.dumps(question(**changes)).encode())


def refused(raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as told:
        parse_request(raw)
    assert told.value.status == 400
    return told.value


def test_the_example_of_figure_5_is_parsed() -> None:
    assert parsed() == RoutingRequest(
        None, "where is the red key? it is in the", " box", 15, 0.7, (0.5, 0.0, 0.0), None,
        (PastDecision("red", "SLM"), PastDecision("key", "LLM")), "session123", "req456", None,
    )  # fmt: skip


def test_optional_fields_may_be_missing() -> None:
    shown = question()
    for name in ("routing_threshold", "llm_state", "history"):
        del shown[name]
    found = parse_request(json.dumps(shown).encode())
    assert (found.threshold, found.state_handle, found.history) == (None, None, ())
    assert parsed(history={"previous_decisions": []}).history == ()


def test_the_last_row_of_hidden_states_is_used() -> None:
    assert parsed(slm_state=state([1, 2, 3], [4, 5, 6])).hidden_state == (4.0, 5.0, 6.0)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"version": None}, "version"),
        ({"version": 2}, "version"),
        ({"version": "1"}, "version"),
        ({"version": True}, "version"),
        ({"context": None}, "context"),
        ({"context": ""}, "context"),
        ({"context": 7}, "context"),
        ({"context": "a\ud800b"}, "context"),
        ({"context": "x" * (schema.MAX_CONTEXT_CHARS + 1)}, "context"),
        ({"current_token": None}, "current_token"),
        ({"current_token": "x" * 257}, "current_token"),
        ({"token_index": None}, "token_index"),
        ({"token_index": -1}, "token_index"),
        ({"token_index": 1.5}, "token_index"),
        ({"token_index": True}, "token_index"),
        ({"token_index": 1 << 21}, "token_index"),
        ({"routing_threshold": 1.01}, "routing_threshold"),
        ({"routing_threshold": -0.1}, "routing_threshold"),
        ({"routing_threshold": "0.7"}, "routing_threshold"),
        ({"routing_threshold": True}, "routing_threshold"),
        ({"slm_state": None}, "slm_state"),
        ({"slm_state": [1.0]}, "slm_state"),
        ({"slm_state": {}}, "slm_state.hidden_states"),
        ({"slm_state": state()}, "slm_state.hidden_states"),
        ({"slm_state": state(1, "2")}, "slm_state.hidden_states"),
        ({"slm_state": state(1, True)}, "slm_state.hidden_states"),
        ({"slm_state": state(1, None)}, "slm_state.hidden_states"),
        ({"slm_state": state(1, 1e6)}, "slm_state.hidden_states"),
        ({"slm_state": state(1, 10**400)}, "slm_state.hidden_states"),
        ({"slm_state": state([1, 2], [3])}, "slm_state.hidden_states"),
        ({"slm_state": state([1], 2)}, "slm_state.hidden_states"),
        ({"slm_state": state([[1]])}, "slm_state.hidden_states"),
        ({"slm_state": state(*[[1]] * 65)}, "slm_state.hidden_states"),
        ({"slm_state": state(*[0] * (schema.MAX_STATE_NUMBERS + 1))}, "slm_state.hidden_states"),
        ({"slm_state": state(1, attention_states="x")}, "slm_state.attention_states"),
        ({"slm_state": state(1, attention_states=[["x"]])}, "slm_state.attention_states"),
        ({"slm_state": state(1, weights=[1])}, "slm_state.weights"),
        ({"llm_state": {"kv": []}}, "llm_state"),
        ({"llm_state": ""}, "llm_state"),
        ({"llm_state": "x" * 257}, "llm_state"),
        ({"history": []}, "history"),
        ({"history": {"decisions": []}}, "history.decisions"),
        ({"history": {"previous_decisions": {}}}, "history.previous_decisions"),
        ({"history": {"previous_decisions": [{"token": "a", "route": "SLM"}] * 4097}}, "history.previous_decisions"),
        ({"history": {"previous_decisions": ["a"]}}, "history.previous_decisions[0]"),
        ({"history": {"previous_decisions": [{"token": "a", "route": "MLM"}]}}, "history.previous_decisions[0].route"),
        ({"history": {"previous_decisions": [{"token": "a", "route": []}]}}, "history.previous_decisions[0].route"),
        ({"history": {"previous_decisions": [{"route": "SLM"}]}}, "history.previous_decisions[0].token"),
        (
            {"history": {"previous_decisions": [{"token": "a", "route": "SLM", "score": 1}]}},
            "history.previous_decisions[0].score",
        ),
        ({"meta_data": None}, "meta_data"),
        ({"meta_data": {"session_id": "s"}}, "meta_data.request_id"),
        ({"meta_data": {"session_id": "", "request_id": "r"}}, "meta_data.session_id"),
        ({"meta_data": {"session_id": "s\n", "request_id": "r"}}, "meta_data.session_id"),
        ({"meta_data": {"session_id": "s" * 129, "request_id": "r"}}, "meta_data.session_id"),
        ({"meta_data": {"session_id": "s", "request_id": "r", "user": "u"}}, "meta_data.user"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "1"}, "max_tokens"),
        ({"stream": True}, "stream"),
        ({"confidence": 0.5}, "confidence"),
    ],
)
def test_invalid_values_are_refused_by_field(changes: dict[str, Any], param: str) -> None:
    told = refused(json.dumps(question(**changes)).encode())
    assert told.param == param
    assert param in told.message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_hidden_states_must_be_finite(number: str) -> None:
    raw = json.dumps(question(slm_state=state(0.25))).replace("0.25", number).encode()
    told = refused(raw)
    assert told.code == "invalid_json" if "999" not in number else told.param == "slm_state.hidden_states"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"slm_state":' + b"[" * 20])
def test_malformed_bodies_are_refused(raw: bytes) -> None:
    assert refused(raw).message


def test_a_long_or_unprintable_field_name_is_not_repeated() -> None:
    for name in ("\u202e", "x" * 500, "\ud800"):
        told = refused(json.dumps(question(**{name: 1})).encode())
        assert told.param == "one"
        assert len(told.message) < 100


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = st.sampled_from([*sorted(question()), "max_tokens", "model", "other"])


def _read_or_refused(raw: bytes) -> RoutingRequest | None:
    """Any other error is a fault."""
    try:
        return parse_request(raw)
    except ApiError:
        return None


@settings(max_examples=150)
@given(changes=st.dictionaries(_FIELDS, _JSON, min_size=1, max_size=3))
def test_any_json_is_parsed_or_refused_with_an_api_error(changes: dict[str, Any]) -> None:
    found = _read_or_refused(json.dumps(question(**changes)).encode())
    if found is None:
        return
    assert found.threshold is None or 0 <= found.threshold <= 1
    assert all(-schema.MAX_VALUE <= value <= schema.MAX_VALUE for value in found.hidden_state)
    assert found.session_id.isprintable()


@settings(max_examples=100)
@given(raw=st.binary(max_size=200))
def test_bytes_are_refused(raw: bytes) -> None:
    assert refused(raw).message


def test_the_response_as_json() -> None:
    body = RoutingResponse("LLM", 0.25, 0.5, (7, 8), " in", "length", "v1.h", "s", "r", ("why",)).body
    assert json.loads(json.dumps(body)) == {
        "version": 1, "route": "LLM", "score": 0.25, "routing_threshold": 0.5, "llm_tokens": [7, 8], "llm_text": " in",
        "finish_reason": "length", "llm_state": "v1.h", "meta_data": {"session_id": "s", "request_id": "r"},
        "reasons": ["why"],
    }  # fmt: skip
