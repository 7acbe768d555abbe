import json
from contextlib import suppress
from copy import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.request_handlers import ChatHandler, CompletionsHandler, ParsedRequest, plain_prompt
from serving.frontend.openai.schema import IGNORED_FIELDS, NEUTRAL_VALUES, parse_body
from serving.messages import SamplingParams
from tests.serving.frontend.openai.fake_gateway import FakeTokenizer
from tests.support.tiny_tokenizers import byte_level, words

SMALL: dict[str, Any] = {"model": "toy", "prompt": "where"}


def completion(**more: Any) -> ParsedRequest:
    return CompletionsHandler().parse(parse_body(json.dumps(SMALL | more).encode()), 1.0, 99)


def chat(messages: Any, **more: Any) -> ParsedRequest:
    return ChatHandler().parse(parse_body(json.dumps({"model": "toy", "messages": messages} | more).encode()), 0.0, 99)


def refusal(body: bytes | dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        completion(**body) if isinstance(body, dict) else CompletionsHandler().parse(parse_body(body), 1.0, 0)
    return caught.value


def test_missing_fields_get_defaults() -> None:
    asked = completion()
    assert asked.inputs == ("where",)
    assert asked.params.sampling == SamplingParams(1.0, 0, 1.0, 99)
    assert (asked.params.max_tokens, asked.params.stop_strings, asked.params.stream) == (None, (), False)


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"temperature": 1e-40}, {"top_p": 0}])
def test_temperature_0_or_top_p_0_is_greedy(greedy: dict[str, Any]) -> None:
    assert completion(**greedy).params.sampling is None


def test_sampling_parameters_are_read() -> None:
    asked = completion(temperature=0.5, top_p=0.9, top_k=40, seed=-7)
    assert asked.params.sampling == SamplingParams(0.5, 40, 0.9, -7)


@pytest.mark.parametrize(
    ("prompt", "inputs"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_prompts_come_in_four_shapes(prompt: Any, inputs: tuple[Any, ...]) -> None:
    assert completion(prompt=prompt).inputs == inputs


@pytest.mark.parametrize("prompt", [None, [], [[]], 5, ["a", 1], [True], [[1.5]], ["a"] * 17])
def test_other_prompts_are_refused(prompt: Any) -> None:
    assert refusal({"prompt": prompt}).param == "prompt"


@pytest.mark.parametrize(
    "more",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"n": 1, "best_of": 1, "echo": False, "suffix": "", "logprobs": None, "logit_bias": {}},
        {"frequency_penalty": 0.0, "presence_penalty": 0, "tools": [], "response_format": {"type": "text"}},
    ],
)
def test_fields_without_effect_are_accepted(more: dict[str, Any]) -> None:
    assert completion(**more).inputs == ("where",)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"n": 2}, "unsupported_parameter"),
        ({"n": True}, "unsupported_parameter"),
        ({"best_of": 3}, "unsupported_parameter"),
        ({"echo": True}, "unsupported_parameter"),
        ({"logprobs": 0}, "unsupported_parameter"),
        ({"logit_bias": {"5": 1}}, "unsupported_parameter"),
        ({"frequency_penalty": 0.5}, "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter"),
        ({"temprature": 1}, "unknown_parameter"),
        ({"temperature": 3}, "invalid_value"),
        ({"top_k": 1 << 31}, "invalid_value"),
        ({"temperature": "hot"}, "invalid_value"),
        ({"temperature": True}, "invalid_value"),
        ({"top_p": 1.1}, "invalid_value"),
        ({"max_tokens": 0}, "invalid_value"),
        ({"max_tokens": 1.5}, "invalid_value"),
        ({"seed": 1 << 63}, "invalid_value"),
        ({"stream": "yes"}, "invalid_value"),
        ({"stop": ""}, "invalid_value"),
        ({"stop": ["a"] * 5}, "invalid_value"),
        ({"stop": [1]}, "invalid_value"),
        ({"stop": "x" * 257}, "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "invalid_value"),
        ({"model": None}, "invalid_value"),
        ({"model": 5}, "invalid_value"),
    ],
)
def test_unsupported_and_invalid_fields_are_refused_by_name(more: dict[str, Any], code: str) -> None:
    found = refusal(more)
    assert (found.status, found.param, found.code) == (400, next(iter(more)), code)
    assert next(iter(more)) in found.message


@pytest.mark.parametrize("name", ["\ud800", "\u202e", "x" * 500])
def test_a_long_or_unprintable_field_name_is_not_repeated(name: str) -> None:
    found = refusal(json.dumps(SMALL | {name: 1}).encode())
    assert (found.code, found.param) == ("unknown_parameter", "one")
    assert json.loads(found.response().body)["error"]["message"] == "this endpoint knows no parameter one; leave it out"


def test_a_nested_field_is_refused_by_its_path() -> None:
    found = refusal({"stream": True, "stream_options": {"include_usage": "yes"}})
    assert found.param == "stream_options.include_usage"
    assert "stream_options.include_usage is" in found.message


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "give a JSON object"),
        (b'{"temperature": NaN}', "NaN is no JSON number"),
        (b'{"a": ' + b"[" * 20 + b"]" * 20 + b"}", "nested more than 16"),
        (b"[" * 100_000, "nested more than 16"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "no JSON"),
        (rb'{"model": "toy", "prompt": "\ud83d"}', "half a character"),
        (rb'{"model": "toy", "prompt": "a", "stop": "\ud83d"}', "half a character"),
    ],
)
def test_malformed_bodies_are_refused(raw: bytes, says: str) -> None:
    found = refusal(raw)
    assert found.status == 400
    assert says in found.message


NAMES = [
    *NEUTRAL_VALUES,
    *IGNORED_FIELDS,
    "model",
    "prompt",
    "messages",
    "stop",
    "stream",
    "temperature",
    "seed",
    "max_tokens",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "include_usage"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6), st.sampled_from([CompletionsHandler(), ChatHandler()])
)
def test_any_json_is_parsed_or_refused_with_an_api_error(
    body: dict[str, Any], form: CompletionsHandler | ChatHandler
) -> None:
    whole = {"model": "toy", "prompt": "a", "messages": [{"role": "user", "content": "a"}]} | body
    whole.pop("prompt" if isinstance(form, ChatHandler) else "messages")
    with suppress(ApiError):
        assert form.parse(parse_body(json.dumps(whole).encode()), 1.0, 0).inputs


def test_messages_are_texts_or_text_parts() -> None:
    parts = [{"type": "text", "text": "where "}, {"type": "text", "text": "is it?"}]
    asked = chat([{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}])
    assert asked.inputs == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "where is it?"},
    )


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (["hello"], "messages[0]"),
        ([{"role": "tool", "content": "a"}], "messages[0].role"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": "a"}, {"role": "assistant"}], "messages[1].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "\ud83d"}], "messages[0].content"),
    ],
)
def test_invalid_messages_are_refused_by_path(messages: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(messages)
    assert caught.value.param == param


def test_both_field_names_of_the_limit_are_read() -> None:
    one = [{"role": "user", "content": "a"}]
    assert chat(one, max_tokens=5).params.max_tokens == 5
    assert chat(one, max_tokens=5, max_completion_tokens=3).params.max_tokens == 3


def test_without_a_chat_template_the_users_next_line_is_a_stop_string() -> None:
    tokenizer: Any = FakeTokenizer()
    assert ChatHandler().stop_strings(tokenizer) == ()
    tokenizer.hf = words()
    asked = chat([{"role": "user", "content": "where is it"}])
    assert "\nUser:" in ChatHandler().stop_strings(tokenizer)
    where = tokenizer.hf.convert_tokens_to_ids("where")
    assert where in ChatHandler().encode(asked, tokenizer)[0]


def test_an_error_of_the_chat_template_is_a_400() -> None:
    class Strict(FakeTokenizer):
        def __init__(self) -> None:
            self.hf = copy(byte_level())
            self.hf.chat_template = "{{ raise_exception('roles must alternate') }}"

    strict: Any = Strict()
    with pytest.raises(ApiError, match="refuses these messages: roles must alternate"):
        ChatHandler().encode(chat([{"role": "user", "content": "a"}]), strict)


def test_without_a_template_messages_are_lines() -> None:
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "where? "}]
    answered = [*said, {"role": "assistant", "content": " here"}, {"role": "user", "content": "and now?"}]
    assert plain_prompt(said) == "System: be brief\nUser: where?\nAssistant:"
    assert plain_prompt(answered) == plain_prompt(said) + " here\nUser: and now?\nAssistant:"
