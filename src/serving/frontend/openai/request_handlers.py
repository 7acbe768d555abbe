"""What differs between `/v1/chat/completions` and `/v1/completions`: parsing, prompts, and the JSON of a choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.schema import GenerationParams, RequestFields, encodable, generation_params

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]
Choice = dict[str, Any]


@dataclass(frozen=True)
class ParsedRequest:
    """`inputs` are messages for chat, texts or token ids for completions."""

    params: GenerationParams
    inputs: tuple[Any, ...]


class RequestHandler(Protocol):
    """The part of the endpoint that is specific to one generation URL."""

    name: str
    id_prefix: str
    object_name: str
    """`object` of a whole response."""
    chunk_name: str
    """`object` of one chunk of a stream."""
    default_max_tokens: int | None
    """Limit for requests that name none; None: the rest of the context."""

    def parse(self, fields: RequestFields, temperature: float, seed: int) -> ParsedRequest:
        """Raises ApiError (400)."""
        ...

    def encode(self, parsed: ParsedRequest, tokenizer: "Tokenizer") -> Sequence[tuple[int, ...]]:
        """One prompt per choice. Raises ApiError (400)."""
        ...

    def stop_strings(self, tokenizer: "Tokenizer", /) -> tuple[str, ...]:
        """Stop strings in addition to the client's."""
        ...

    def choice(self, index: int, text: str, finish_reason: FinishReason) -> Choice: ...
    def opening_choice(self, index: int, /) -> Choice | None: ...
    def delta_choice(self, index: int, text: str, finish_reason: FinishReason | None) -> Choice: ...


ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role in a request -> role for the chat template."""

ChatMessage = dict[str, str]


class ChatHandler:
    """A `RequestHandler`: one list of messages, one answer."""

    name, id_prefix = "chat", "chatcmpl"
    object_name, chunk_name = "chat.completion", "chat.completion.chunk"
    default_max_tokens: int | None = None

    def parse(self, fields: RequestFields, temperature: float, seed: int) -> ParsedRequest:
        messages = _messages(fields.take("messages"))
        asked = ParsedRequest(
            generation_params(fields, ("max_completion_tokens", "max_tokens"), temperature, seed), messages
        )
        fields.refuse_unread()
        return asked

    def encode(self, parsed: ParsedRequest, tokenizer: "Tokenizer") -> Sequence[tuple[int, ...]]:
        messages = list(parsed.inputs)
        templated = bool(tokenizer.hf.chat_template)
        text = _apply_template(messages, tokenizer) if templated else plain_prompt(messages)
        return [tuple(tokenizer.hf(text, add_special_tokens=not templated)["input_ids"])]

    def stop_strings(self, tokenizer: "Tokenizer") -> tuple[str, ...]:
        """A model without a chat template would go on with the user's next message."""
        return () if tokenizer.hf.chat_template else ("\nUser:", "\nSystem:")

    def choice(self, index: int, text: str, finish_reason: FinishReason) -> Choice:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": finish_reason}

    def opening_choice(self, index: int) -> Choice | None:
        return _chunk_choice(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def delta_choice(self, index: int, text: str, finish_reason: FinishReason | None) -> Choice:
        return _chunk_choice(index, {"content": text} if text else {}, finish_reason)


def plain_prompt(messages: Sequence[ChatMessage]) -> str:
    """The prompt for a tokenizer without a chat template: a line `Role: text` per message, then `Assistant:`."""
    lines = [f"{message['role'].capitalize()}: {message['content'].strip()}\n" for message in messages]
    return "".join(lines) + "Assistant:"


def _chunk_choice(index: int, delta: dict[str, str | None], finish_reason: FinishReason | None) -> Choice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _apply_template(messages: list[ChatMessage], tokenizer: "Tokenizer") -> str:
    from jinja2 import TemplateError

    try:
        return str(tokenizer.hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        raise ApiError.invalid(f"this model's chat template refuses these messages: {error}", "messages") from error


def _messages(value: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list) or not value:
        raise ApiError.invalid("messages is missing or empty; give a list of messages", "messages")
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(value))


def _message(value: Any, at: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise ApiError.invalid(f"{at} is no object; give role and content", at)
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ApiError.invalid(f"{at}.role is {role!r}; this model knows {', '.join(ROLES)}", f"{at}.role")
    if value.get("tool_calls") or value.get("function_call"):
        raise ApiError.unsupported(f"{at}.tool_calls", f"{at}.tool_calls is not supported here: there are no tools")
    return {"role": ROLES[role], "content": encodable(_content(value.get("content"), at), f"{at}.content")}


def _content(value: Any, at: str) -> str:
    """A text, or the joined texts of a list of parts."""
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


MAX_PROMPTS = 16


class CompletionsHandler:
    """A `RequestHandler`: up to MAX_PROMPTS prompts, one answer each."""

    name, id_prefix = "completions", "cmpl"
    object_name = chunk_name = "text_completion"
    default_max_tokens: int | None = 16
    """OpenAI's default."""

    def parse(self, fields: RequestFields, temperature: float, seed: int) -> ParsedRequest:
        prompts = _prompts(fields.take("prompt"))
        asked = ParsedRequest(generation_params(fields, ("max_tokens",), temperature, seed), prompts)
        fields.refuse_unread()
        return asked

    def encode(self, parsed: ParsedRequest, tokenizer: "Tokenizer") -> Sequence[tuple[int, ...]]:
        found = [tuple(tokenizer.hf(text)["input_ids"]) if isinstance(text, str) else text for text in parsed.inputs]
        for tokens in found:
            if not tokens:
                raise ApiError.invalid("the prompt has no token; give a text", "prompt")
            strange = next((token for token in tokens if not 0 <= token < len(tokenizer)), None)
            if strange is not None:
                message = f"prompt has token {strange}; this model's are 0 to {len(tokenizer) - 1}"
                raise ApiError.invalid(message, "prompt")
        return found

    def stop_strings(self, _: "Tokenizer") -> tuple[str, ...]:
        return ()

    def choice(self, index: int, text: str, finish_reason: FinishReason) -> Choice:
        return self.delta_choice(index, text, finish_reason)

    def opening_choice(self, _: int) -> Choice | None:
        return None

    def delta_choice(self, index: int, text: str, finish_reason: FinishReason | None) -> Choice:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Accepts a text, token ids, or a list of either."""
    prompts = [value] if isinstance(value, str) or _is_token_ids(value) else value
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) or _is_token_ids(p) for p in prompts):
        raise ApiError.invalid("prompt is missing or malformed; give a text, token ids, or a list of either", "prompt")
    if len(prompts) > MAX_PROMPTS:
        raise ApiError.invalid(f"there are {len(prompts)} prompts; give at most {MAX_PROMPTS} at once", "prompt")
    return tuple(encodable(p, "prompt") if isinstance(p, str) else tuple(p) for p in prompts)


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)
