"""Encodes a prompt as token ids, with a chat template or plain, within a limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Template = Literal["auto", "chat", "plain"]
Truncate = Literal["refuse", "left", "middle"]


class ChatTokenizer(Protocol):
    """The part of a `transformers` tokenizer that is used here."""

    chat_template: Any
    bos_token_id: int | None

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]: ...
    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


@dataclass(frozen=True)
class EncodedPrompt:
    """Token ids, and how many were dropped to keep the limit."""

    tokens: tuple[int, ...]
    num_dropped: int = 0


def encode_prompt(
    text: str,
    tokenizer: ChatTokenizer,
    *,
    template: Template,
    max_tokens: int,
    truncate: Truncate,
    recorded_tokens: int | None = None,
) -> EncodedPrompt:
    """Encodes `text` as one user turn (`chat`, or `auto` with a tokenizer that has a template) or `plain`.

    A text above `max_tokens` loses its start (`left`: worked examples go first) or its middle (`middle`: instruction
    and end of an article stay); the template's own tokens are kept. `recorded_tokens`, of a trace, may limit a prompt
    further, but to one token beside the template at least. Raises ValueError for `chat` without a template, with
    `refuse` for a prompt above the limit, and for a template above `max_tokens`.
    """
    limit = min(max_tokens, recorded_tokens or max_tokens)
    chat = template == "chat" or (template == "auto" and bool(tokenizer.chat_template))
    full_text = _chat_text(text, tokenizer) if chat else text
    ids = _ids(tokenizer, full_text, special=not chat)
    if len(ids) <= limit:
        return EncodedPrompt(tuple(ids))
    head, body, tail = _chat_parts(full_text, text.strip(), tokenizer) if chat else _plain_parts(ids, tokenizer)
    framed = len(head) + len(tail)
    if truncate == "refuse" or framed >= max_tokens:
        raise ValueError(_too_long_text(len(ids), framed, limit, max_tokens, truncate))
    kept = (*head, *_truncate(body, max(1, limit - framed), truncate), *tail)
    return EncodedPrompt(kept, max(0, len(ids) - len(kept)))


def _too_long_text(num_tokens: int, framed: int, limit: int, max_tokens: int, truncate: Truncate) -> str:
    if truncate == "refuse" and limit < max_tokens:
        return (
            f"the prompt has {num_tokens} tokens, the trace's row has {limit}: cut with workload.truncate=left or "
            "middle, or set workload.arrivals.use_lengths=false"
        )
    if truncate == "refuse":
        return (
            f"the prompt has {num_tokens} tokens, the limit is {limit}: raise workload.max_prompt_tokens, or cut with "
            "workload.truncate=left or middle"
        )
    return (
        f"the prompt has {num_tokens} tokens, the limit is {limit}, and its template alone has {framed}: raise "
        "workload.max_prompt_tokens, or set workload.template=plain"
    )


def _truncate(body: Sequence[int], max_tokens: int, truncate: Truncate) -> tuple[int, ...]:
    if len(body) <= max_tokens:  # without its template a text can have fewer tokens
        return tuple(body)
    front = 0 if truncate == "left" else max_tokens // 2
    return (*body[:front], *body[len(body) - (max_tokens - front) :])


def _chat_text(text: str, tokenizer: ChatTokenizer) -> str:
    if not tokenizer.chat_template:
        raise ValueError("workload.template=chat, but this tokenizer has no chat template; use auto or plain")
    turn = [{"role": "user", "content": text.strip()}]
    return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))


def _plain_parts(ids: list[int], tokenizer: ChatTokenizer) -> tuple[list[int], list[int], list[int]]:
    """Returns the token that starts every text, if there is one, and all others."""
    start = int(bool(ids) and ids[0] == tokenizer.bos_token_id)
    return ids[:start], ids[start:], []


def _chat_parts(full_text: str, text: str, tokenizer: ChatTokenizer) -> tuple[list[int], list[int], list[int]]:
    """Returns the ids of the template's part before the text, of the text, and of the template's part after it."""
    before, _, after = _chat_text(_STAND_IN, tokenizer).partition(_STAND_IN)
    if full_text != f"{before}{text}{after}":  # a template that looks at the text
        before, _, after = full_text.rpartition(text)
    return _ids(tokenizer, before), _ids(tokenizer, text), _ids(tokenizer, after)


_STAND_IN = "the-text-of-this-turn"
"""Shows where a template puts a text, which may itself be a word of the template."""


def _ids(tokenizer: ChatTokenizer, text: str, special: bool = False) -> list[int]:
    return [int(token) for token in tokenizer(text, add_special_tokens=special)["input_ids"]]
