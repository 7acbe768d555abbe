"""Requests and responses of the routing API, after the paper's Figure 5; errors name the field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.schema import MAX_NAME_CHARS, RequestFields, encodable, parse_body, printable

VERSION = 1
Route = Literal["SLM", "LLM"]

MAX_CONTEXT_CHARS = 1 << 18
MAX_TOKEN_CHARS = 256
MAX_HANDLE_CHARS = 256
MAX_DECISIONS = 4096
MAX_INDEX = 1 << 20
MAX_STATE_ROWS = 64
MAX_STATE_NUMBERS = 1 << 17
MAX_VALUE = 65504.0
"""The largest fp16 number; hidden states are computed in fp16."""


@dataclass(frozen=True)
class PastDecision:
    """A client's claim about an earlier token. It does not influence decisions."""

    token: str
    route: Route


@dataclass(frozen=True)
class RoutingRequest:
    """`hidden_state`, of shape (width,), is the device model's last hidden state at the position that predicts the
    current token. Attention states are checked against bounds and not used.
    """

    model: str | None
    context: str
    """The text before the current token."""
    current_token: str
    """The small model's next token."""
    token_index: int
    threshold: float | None
    hidden_state: tuple[float, ...]
    state_handle: str | None
    """`llm_state` of an earlier response."""
    history: tuple[PastDecision, ...]
    session_id: str
    request_id: str
    max_tokens: int | None
    """Limit for the large model; None if the request names none."""


def parse_request(raw: bytes) -> RoutingRequest:
    """Raises ApiError (400) that names the field."""
    fields = parse_body(raw)
    version = fields.integer("version", 0, MAX_INDEX)
    if version != VERSION:
        raise ApiError.invalid(f"version is {version}; this server speaks version {VERSION}", "version")
    meta, state = _object(fields, "meta_data"), _object(fields, "slm_state")
    request = RoutingRequest(
        model=fields.text("model") if fields.body.get("model") is not None else None,
        context=_text(fields, "context", MAX_CONTEXT_CHARS),
        current_token=_text(fields, "current_token", MAX_TOKEN_CHARS),
        token_index=_required_integer(fields, "token_index", 0, MAX_INDEX),
        threshold=_optional_threshold(fields, "routing_threshold"),
        hidden_state=_hidden_state(state),
        state_handle=_handle(fields),
        history=_history(fields),
        session_id=_identifier(meta, "session_id"),
        request_id=_identifier(meta, "request_id"),
        max_tokens=fields.integer("max_tokens", 1, MAX_INDEX),
    )
    for group in (state, meta, fields):
        _refuse_unread(group)
    return request


def _object(fields: RequestFields, name: str) -> RequestFields:
    value = fields.take(name)
    if not isinstance(value, dict):
        raise ApiError.invalid(f"{name} is missing or no object", name)
    return RequestFields(value, f"{name}.")


def _text(fields: RequestFields, name: str, longest: int) -> str:
    found, at = fields.text(name), f"{fields.path_prefix}{name}"
    if len(found) > longest:
        raise ApiError.invalid(f"{at} has {len(found)} characters; give at most {longest}", at)
    return found


def _identifier(meta: RequestFields, name: str) -> str:
    found = _text(meta, name, MAX_NAME_CHARS)
    if not found.isprintable():
        raise ApiError.invalid(f"meta_data.{name} has characters that cannot be printed", f"meta_data.{name}")
    return found


def _required_integer(fields: RequestFields, name: str, low: int, high: int) -> int:
    found = fields.integer(name, low, high)
    if found is None:
        raise ApiError.invalid(f"{name} is missing; give a whole number from {low} to {high}", name)
    return found


def _optional_threshold(fields: RequestFields, name: str) -> float | None:
    return None if fields.body.get(name) is None else fields.number(name, 0.0, 0.0, 1.0)


def _handle(fields: RequestFields) -> str | None:
    value = fields.take("llm_state")
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= MAX_HANDLE_CHARS):
        message = "llm_state is no handle; give null, or what this server returned as llm_state: a state is not taken"
        raise ApiError.invalid(message, "llm_state")
    return None if value is None else encodable(value, "llm_state")


def _history(fields: RequestFields) -> tuple[PastDecision, ...]:
    value = fields.take("history")
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise ApiError.invalid("history is no object", "history")
    group = RequestFields(value, "history.")
    past = group.take("previous_decisions")
    _refuse_unread(group)
    if past is None:
        return ()
    if not isinstance(past, list) or len(past) > MAX_DECISIONS:
        raise ApiError.invalid(
            f"history.previous_decisions is no list of at most {MAX_DECISIONS} decisions", "history.previous_decisions"
        )
    return tuple(_past_decision(each, f"history.previous_decisions[{i}]") for i, each in enumerate(past))


def _past_decision(value: Any, at: str) -> PastDecision:
    if not isinstance(value, dict):
        raise ApiError.invalid(f"{at} is no object", at)
    group = RequestFields(value, f"{at}.")
    token, route = _text(group, "token", MAX_TOKEN_CHARS), group.take("route")
    _refuse_unread(group)
    if route not in get_args(Route):
        raise ApiError.invalid(f"{at}.route is neither SLM nor LLM", f"{at}.route")
    return PastDecision(token, route)


def _hidden_state(state: RequestFields) -> tuple[float, ...]:
    """Accepts one row, or several, of which the last is the current token's."""
    _check_bounds(state.take("attention_states"), "slm_state.attention_states")
    at, value = "slm_state.hidden_states", state.take("hidden_states")
    _check_bounds(value, at)
    row = value[-1] if isinstance(value, list) and value and isinstance(value[-1], list) else value
    if not isinstance(row, list) or not row or any(isinstance(each, list) for each in row):
        raise ApiError.invalid(f"{at} is missing; give the last layer's state as numbers, or rows of them", at)
    if row is not value and any(not isinstance(each, list) or len(each) != len(row) for each in value):
        raise ApiError.invalid(f"{at} has rows of different widths", at)
    return tuple(float(each) for each in row)


def _check_bounds(value: Any, at: str) -> None:
    """Raises ApiError for anything but nested lists of finite numbers within MAX_STATE_ROWS and MAX_STATE_NUMBERS."""
    if value is None:
        return
    if not isinstance(value, list) or len(value) > MAX_STATE_NUMBERS:
        raise ApiError.invalid(f"{at} is no list of numbers, or too long a one", at)
    if sum(isinstance(each, list) for each in value) > MAX_STATE_ROWS:
        raise ApiError.invalid(f"{at} has more than {MAX_STATE_ROWS} rows", at)
    waiting, count = [value], 0
    while waiting:
        for each in waiting.pop():
            if isinstance(each, list):
                waiting.append(each)
                continue
            count += 1
            if isinstance(each, bool) or not isinstance(each, int | float) or not -MAX_VALUE <= each <= MAX_VALUE:
                raise ApiError.invalid(f"{at} holds what is no finite number up to {MAX_VALUE:g}", at)
    if count > MAX_STATE_NUMBERS:
        raise ApiError.invalid(f"{at} holds {count} numbers; give at most {MAX_STATE_NUMBERS}", at)


def _refuse_unread(fields: RequestFields) -> None:
    if fields.unread:
        shown = printable(f"{fields.path_prefix}{min(fields.unread)}")
        raise ApiError(400, f"the routing API knows no field {shown}; leave it out", "unknown_parameter", shown)


@dataclass(frozen=True)
class RoutingResponse:
    """A decision; `tokens` and `text` are the large model's, empty for route SLM."""

    route: Route
    score: float
    threshold: float
    tokens: tuple[int, ...]
    text: str
    finish_reason: Literal["stop", "length"] | None
    state_handle: str | None
    session_id: str
    request_id: str
    reasons: tuple[str, ...]

    @property
    def body(self) -> Mapping[str, Any]:
        return {
            "version": VERSION,
            "route": self.route,
            "score": self.score,
            "routing_threshold": self.threshold,
            "llm_tokens": list(self.tokens),
            "llm_text": self.text,
            "finish_reason": self.finish_reason,
            "llm_state": self.state_handle,
            "meta_data": {"session_id": self.session_id, "request_id": self.request_id},
            "reasons": list(self.reasons),
        }
