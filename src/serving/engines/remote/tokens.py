"""The text that a server wrote as the tokens of the pair's tokenizer, where the server gives no ids."""

from collections.abc import Sequence
from typing import Any

from serving.engines.remote.errors import RemoteError
from serving.engines.remote.shown import shown

HALF = "\ufffd"
"""What servers write for bytes that are no character, or not yet one."""
_WINDOW = 32
"""Tokens of the prompt that give the text its context."""


def encode(hf: Any, prompt: Sequence[int], text: str) -> tuple[int, ...]:
    """The tokens of `text` behind `prompt`: cut as if both were one text where the prompt allows it, else by itself.

    Raises RemoteError where they do not decode to the same text.
    """
    if HALF in text:
        raise RemoteError(
            "the server's text holds half a character, and it gives no token ids; use one that does (llama.cpp, vLLM, "
            "SGLang)"
        )
    tail = list(prompt[-_WINDOW:])
    before = decode(hf, tail)
    whole = _cut(hf, before + text)
    found = whole[len(tail) :] if whole[: len(tail)] == tail else _cut(hf, text)
    if decode(hf, tail + found) != before + text:
        raise RemoteError(f"the server's text {shown(text)} cannot be written in this tokenizer's tokens")
    return tuple(found)


def decode(hf: Any, tokens: Sequence[int]) -> str:
    """Special tokens written out, spaces as they are."""
    text: str = hf.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def names(hf: Any, before: Sequence[int], token: int) -> tuple[str, str]:
    """What a token is called by itself, and behind the one before it: some tokenizers drop a space at the beginning."""
    last = list(before[-1:])
    return decode(hf, [token]), decode(hf, [*last, token]).removeprefix(decode(hf, last))


def whole_part(text: str) -> str:
    """Without the half character at its end."""
    return text.rstrip(HALF)


def _cut(hf: Any, text: str) -> list[int]:
    found: list[int] = hf(text, add_special_tokens=False)["input_ids"]
    return found
