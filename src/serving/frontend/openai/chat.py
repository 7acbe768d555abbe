"""POST /v1/chat/completions: messages, put into words by the tokenizer's chat template or plainly."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.request_handlers import Asked, Choice, Finish
from serving.frontend.openai.schema import Fields, encodable, question

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""What clients say, and what chat templates know."""

Message = dict[str, str]


class Chat:
    """A `serving.frontend.openai.request_handlers.Form`: one list of messages, one answer."""

    name, id_prefix = "chat", "chatcmpl"
    object_name, chunk_name = "chat.completion", "chat.completion.chunk"
    limit: int | None = None

    def parse(self, fields: Fields, temperature: float, seed: int) -> Asked:
        messages = _messages(fields.take("messages"))
        asked = Asked(question(fields, ("max_completion_tokens", "max_tokens"), temperature, seed), messages)
        fields.finish()
        return asked

    def encode(self, asked: Asked, tokenizer: "Tokenizer") -> Sequence[tuple[int, ...]]:
        messages = list(asked.inputs)
        templated = bool(tokenizer.hf.chat_template)
        text = _templated(messages, tokenizer) if templated else plain(messages)
        return [tuple(tokenizer.hf(text, add_special_tokens=not templated)["input_ids"])]

    def stops(self, tokenizer: "Tokenizer") -> tuple[str, ...]:
        """A model without a template does not end its turn: it goes on with the user's."""
        return () if tokenizer.hf.chat_template else ("\nUser:", "\nSystem:")

    def choice(self, index: int, text: str, finish: Finish) -> Choice:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": finish}

    def opening(self, index: int) -> Choice | None:
        return _chunk(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def delta(self, index: int, text: str, finish: Finish | None) -> Choice:
        return _chunk(index, {"content": text} if text else {}, finish)


def plain(messages: Sequence[Message]) -> str:
    """Messages for a tokenizer without a chat template: a line `Role: text` each, and `Assistant:` at the end."""
    lines = [f"{message['role'].capitalize()}: {message['content'].strip()}\n" for message in messages]
    return "".join(lines) + "Assistant:"


def _chunk(index: int, delta: dict[str, str | None], finish: Finish | None) -> Choice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _templated(messages: list[Message], tokenizer: "Tokenizer") -> str:
    from jinja2 import TemplateError

    try:
        return str(tokenizer.hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        raise ApiError.invalid(f"this model's chat template refuses these messages: {error}", "messages") from error


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise ApiError.invalid("messages is missing or empty; give a list of messages", "messages")
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(value))


def _message(value: Any, at: str) -> Message:
    if not isinstance(value, dict):
        raise ApiError.invalid(f"{at} is no object; give role and content", at)
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ApiError.invalid(f"{at}.role is {role!r}; this model knows {', '.join(ROLES)}", f"{at}.role")
    if value.get("tool_calls") or value.get("function_call"):
        raise ApiError.unsupported(f"{at}.tool_calls", f"{at}.tool_calls is not supported here: there are no tools")
    return {"role": ROLES[role], "content": encodable(_content(value.get("content"), at), f"{at}.content")}


def _content(value: Any, at: str) -> str:
    """A text, or text parts in a row."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ApiError.invalid(f"{at}.content is missing; give a text or a list of text parts", f"{at}.content")
    return "".join(_part(part, f"{at}.content[{i}]") for i, part in enumerate(value))


def _part(value: Any, at: str) -> str:
    if not isinstance(value, dict) or value.get("type") != "text":
        raise ApiError.unsupported(at, f"{at} is no text part; this model reads text alone")
    if not isinstance(value.get("text"), str):
        raise ApiError.invalid(f"{at}.text is missing; give a text", f"{at}.text")
    return str(value["text"])
