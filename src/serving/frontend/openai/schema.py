"""Parsing of request bodies: bounded, typed, and with errors that name the field."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.core.decoding import MIN_TEMPERATURE
from serving.frontend.openai.errors import ApiError
from serving.messages import SamplingParams

MAX_DEPTH = 16
MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_NAME_CHARS = 128

IGNORED_FIELDS = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "parallel_tool_calls",
        "prediction",
    )
)
"""Accepted with any value: they do not change the answer's text."""

NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Not supported: accepted only as null or with these values, which do not change the answer."""


@dataclass(frozen=True)
class GenerationParams:
    """The fields that chat and completion requests have in common."""

    model: str
    max_tokens: int | None
    """None if the request names no limit."""
    max_tokens_field: str
    """The field that set `max_tokens`, for errors."""
    sampling: SamplingParams | None
    stop_strings: tuple[str, ...]
    stream: bool
    include_usage: bool


@dataclass
class RequestFields:
    """Typed access to the fields of a JSON object. `unread` has the non-null fields that were not taken yet.

    Args:
        path_prefix: path of this object in the body, with a final dot, for errors.
    """

    body: Mapping[str, Any]
    path_prefix: str = ""
    unread: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.unread = {name for name, value in self.body.items() if value is not None}

    def take(self, name: str) -> Any:
        self.unread.discard(name)
        return self.body.get(name)

    def text(self, name: str) -> str:
        value, at = self.take(name), self.path_prefix + name
        if not isinstance(value, str) or not value:
            raise ApiError.invalid(f"{at} is {_abbreviated(value)}; give a text", at)
        return encodable(value, at)

    def flag(self, name: str) -> bool:
        value, at = self.take(name), self.path_prefix + name
        if value is not None and not isinstance(value, bool):
            raise ApiError.invalid(f"{at} is {_abbreviated(value)}; give true or false", at)
        return bool(value)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value, at = self.take(name), self.path_prefix + name
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ApiError.invalid(f"{at} is {_abbreviated(value)}; give a number from {low:g} to {high:g}", at)
        return float(value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        value, at = self.take(name), self.path_prefix + name
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ApiError.invalid(f"{at} is {_abbreviated(value)}; give a whole number from {low} to {high}", at)
        return value

    def refuse_unread(self) -> None:
        """Raises ApiError (400) that names an unread field, unless the field does not change the answer."""
        for name in sorted(self.unread - IGNORED_FIELDS):
            if name not in NEUTRAL_VALUES:
                shown = printable(name)
                message = f"this endpoint knows no parameter {shown}; leave it out"
                raise ApiError(400, message, "unknown_parameter", shown)
            value = self.body[name]
            if not any(
                value == neutral and type(value) in _matching_types(neutral) for neutral in NEUTRAL_VALUES[name]
            ):
                allowed = " or ".join(json.dumps(neutral) for neutral in NEUTRAL_VALUES[name])
                raise ApiError.unsupported(
                    name, f"{name}={_abbreviated(value)} is not supported here; leave it out (or give {allowed})"
                )


def parse_body(raw: bytes) -> RequestFields:
    """Raises ApiError (400) for a body that is no JSON object or nested too deeply."""
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        body = None
        depth = MAX_DEPTH + 1
    except ValueError as error:
        raise ApiError.invalid(f"the body is no JSON: {error}", code="invalid_json") from None
    else:
        depth = _depth(body)
    if depth > MAX_DEPTH:
        raise ApiError.invalid(f"the body is nested more than {MAX_DEPTH} deep", code="invalid_json")
    if not isinstance(body, dict):
        raise ApiError.invalid(f"the body is {_abbreviated(body)}; give a JSON object", code="invalid_json")
    return RequestFields(body)


def generation_params(
    fields: RequestFields, max_tokens_fields: tuple[str, ...], temperature: float, seed: int
) -> GenerationParams:
    """`temperature` and `seed` are defaults for requests without these fields."""
    limits = {name: fields.integer(name, 1, 1 << 31) for name in max_tokens_fields}
    name, limit = next(((k, v) for k, v in limits.items() if v is not None), (max_tokens_fields[-1], None))
    stream = fields.flag("stream")
    return GenerationParams(
        model=fields.text("model"),
        max_tokens=limit,
        max_tokens_field=name,
        sampling=_sampling(fields, temperature, seed),
        stop_strings=_stop(fields.take("stop")),
        stream=stream,
        include_usage=_include_usage(fields.take("stream_options"), stream),
    )


def printable(name: str) -> str:
    """The name of an unknown field, for errors: `one` if it is long or not printable."""
    return name if len(name) <= MAX_NAME_CHARS and name.isprintable() else "one"


def encodable(text: str, param: str) -> str:
    """The text. Raises ApiError (400) if it has a lone surrogate, which JSON can encode and no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError.invalid(f"{param} has half a character (surrogate) at {error.start}", param) from None
    return text


def _sampling(fields: RequestFields, temperature: float, seed: int) -> SamplingParams | None:
    temperature = fields.number("temperature", temperature, 0, 2)
    top_p = fields.number("top_p", 1, 0, 1)
    top_k = fields.integer("top_k", 0, (1 << 31) - 1) or 0
    given = fields.integer("seed", -(1 << 63), (1 << 63) - 1)
    if temperature < MIN_TEMPERATURE or top_p == 0:
        return None
    return SamplingParams(temperature, top_k, top_p, seed if given is None else given)


def _stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(stop, str) for stop in stops):
        raise ApiError.invalid(f"stop is {_abbreviated(value)}; give a text or up to {MAX_STOPS} of them", "stop")
    if any(not 0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise ApiError.invalid(f"a stop text has 1 to {MAX_STOP_CHARS} characters", "stop")
    return tuple(encodable(stop, "stop") for stop in stops)


def _include_usage(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    if not stream:
        raise ApiError.invalid("stream_options needs stream=true", "stream_options")
    if not isinstance(value, dict):
        raise ApiError.invalid(f"stream_options is {_abbreviated(value)}; give an object", "stream_options")
    return RequestFields(value, "stream_options.").flag("include_usage")


def _depth(body: Any) -> int:
    deepest, waiting = 0, [(body, 1)]
    while waiting:
        value, depth = waiting.pop()
        deepest = max(deepest, depth)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting.extend((child, depth + 1) for child in inner if isinstance(child, dict | list))
    return deepest


def _matching_types(neutral: object) -> tuple[type, ...]:
    """Types of values equal to a neutral one: 0.0 equals 0, but false does not."""
    return (int, float) if type(neutral) is int else (type(neutral),)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _abbreviated(value: object) -> str:
    shown = "missing" if value is None else json.dumps(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
