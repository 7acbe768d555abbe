"""A prompt's text as token ids: with a chat template or plain, and within a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Template = Literal["auto", "chat", "plain"]
Truncate = Literal["refuse", "left", "middle"]


class ChatTokenizer(Protocol):
    """The part of a `transformers` tokenizer that is used."""

    chat_template: Any
    bos_token_id: int | None

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]: ...
    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


@dataclass(frozen=True)
class EncodedPrompt:
    """Token ids, and how many were `num_dropped` to keep the limit."""

    tokens: tuple[int, ...]
    num_dropped: int = 0


def encode_prompt(
    text: str, tokenizer: ChatTokenizer, *, template: Template, max_tokens: int, truncate: Truncate
) -> EncodedPrompt:
    """At most `max_tokens` ids of `text` as one user turn (`chat`; `auto` where the tokenizer has a template) or as it
    is.

    A text that is too long loses its beginning (`left`: worked examples go first) or its middle (`middle`: the
    instruction and the end of an article stay); what the template puts around it is kept.
    Raises ValueError for `chat` without a template, and for a prompt above the limit with `refuse`.
    """
    chat = template == "chat" or (template == "auto" and bool(tokenizer.chat_template))
    whole = _chat_text(text, tokenizer) if chat else text
    ids = _ids(tokenizer, whole, special=not chat)
    if len(ids) <= max_tokens:
        return EncodedPrompt(tuple(ids))
    head, body, tail = _chat_parts(whole, text.strip(), tokenizer) if chat else _plain_parts(ids, tokenizer)
    room = max_tokens - len(head) - len(tail)
    if truncate == "refuse" or room < 1:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, the limit is {max_tokens}: raise workload.max_prompt_tokens, or cut with "
            "workload.truncate=left or middle"
        )
    kept = (*head, *_truncate(body, room, truncate), *tail)
    return EncodedPrompt(kept, max(0, len(ids) - len(kept)))


def _truncate(body: Sequence[int], max_tokens: int, truncate: Truncate) -> tuple[int, ...]:
    if len(body) <= max_tokens:  # apart from its template a text can have a token less
        return tuple(body)
    front = 0 if truncate == "left" else max_tokens // 2
    return (*body[:front], *body[len(body) - (max_tokens - front) :])


def _chat_text(text: str, tokenizer: ChatTokenizer) -> str:
    if not tokenizer.chat_template:
        raise ValueError("workload.template=chat, but this tokenizer has no chat template; use auto or plain")
    turn = [{"role": "user", "content": text.strip()}]
    return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))


def _plain_parts(ids: list[int], tokenizer: ChatTokenizer) -> tuple[list[int], list[int], list[int]]:
    """The token that begins every text, if there is one, and all others."""
    start = int(bool(ids) and ids[0] == tokenizer.bos_token_id)
    return ids[:start], ids[start:], []


def _chat_parts(whole: str, text: str, tokenizer: ChatTokenizer) -> tuple[list[int], list[int], list[int]]:
    """Ids of what the template puts before the text, of the text, and of what stands after it."""
    before, _, after = whole.rpartition(text)
    return _ids(tokenizer, before), _ids(tokenizer, text), _ids(tokenizer, after)


def _ids(tokenizer: ChatTokenizer, text: str, special: bool = False) -> list[int]:
    return [int(token) for token in tokenizer(text, add_special_tokens=special)["input_ids"]]
