"""Verdicts from a prompt's log-probabilities (`echo` with `logprobs`), and tokens from text without token ids."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import float_info
from typing import Any

from serving.engines.remote.dialect import only_choice, parse_token_id
from serving.engines.remote.errors import RemoteError, short_repr, type_name

REPLACEMENT_CHAR = "\ufffd"
"""Stands for bytes that form no complete character."""
_PARTIAL_CHAR = re.compile(f"[{REPLACEMENT_CHAR}\ud800-\udfff]")
"""That, or half of a pair of UTF-16, which JSON can hold."""
_CONTEXT_TOKENS = 32
"""The last tokens of the prompt, tokenized together with the text."""


def encode(hf: Any, prompt: Sequence[int], text: str) -> tuple[int, ...]:
    """The tokens of `text` after `prompt`: tokenized as one text if the prompt's tokens stay the same, else alone.

    Raises RemoteError if they do not decode to the same text.
    """
    if _PARTIAL_CHAR.search(text):
        raise RemoteError(
            "the server's text holds half a character, and it gives no token ids; use one that does (llama.cpp, vLLM, "
            "SGLang)"
        )
    tail = list(prompt[-_CONTEXT_TOKENS:])
    before = decode(hf, tail)
    whole = _tokenize(hf, before + text)
    found = whole[len(tail) :] if whole[: len(tail)] == tail else _tokenize(hf, text)
    if decode(hf, tail + found) != before + text:
        raise RemoteError(f"the server's text {short_repr(text)} cannot be written in this tokenizer's tokens")
    return tuple(found)


def decode(hf: Any, tokens: Sequence[int]) -> str:
    """The text with special tokens, without clean-up of spaces."""
    text: str = hf.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def token_texts(hf: Any, before: Sequence[int], token: int) -> tuple[str, str]:
    """A token's text alone, and after the token before it: some tokenizers drop a leading space."""
    last = list(before[-1:])
    return decode(hf, [token]), decode(hf, [*last, token]).removeprefix(decode(hf, last))


def strip_partial_char(text: str) -> str:
    """Removes incomplete characters at the end."""
    while text and _PARTIAL_CHAR.match(text[-1]):
        text = text[:-1]
    return text


def _tokenize(hf: Any, text: str) -> list[int]:
    found: list[int] = hf(text, add_special_tokens=False)["input_ids"]
    return found


@dataclass(frozen=True)
class TokenCheck:
    """`is_argmax`: True if the token is the likeliest. `argmax_token`: the likeliest one's id, None if the server gives
    only its text. By text, an incomplete character never counts as the likeliest: several have the same text.
    """

    is_argmax: bool
    argmax_token: int | None


def check_tokens(body: Mapping[str, Any], prompt: Sequence[int], num_checked: int, hf: Any = None) -> list[TokenCheck]:
    """Checks the last `num_checked` tokens of the prompt. Raises RemoteError unless there is one entry per token.

    `hf` is the tokenizer for a prompt sent as text: then each entry's text must be that of the token here.
    """
    found = only_choice(body).get("logprobs")
    if not isinstance(found, dict):
        raise RemoteError(f"the server returned {type_name(found)} as logprobs of the prompt (echo)")
    tokens, own, tops = (_entries(found, name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if {len(own), len(tops)} != {len(tokens)} or not len(prompt) <= len(tokens) <= len(prompt) + 1:
        raise RemoteError(
            f"the server returned {len(tokens)}, {len(own)} and {len(tops)} log-probabilities for {len(prompt)} tokens "
            "and one more; it does not echo prompts"
        )
    at = range(len(prompt) - num_checked, len(prompt))
    if hf is not None:
        _check_tokenization(body, tokens, prompt, hf)
    return [_check_token(tokens[i], own[i], tops[i], prompt[i]) for i in at]


def next_token(body: Mapping[str, Any], prompt_tokens: int) -> int | None:
    """The id of the token that the server wrote after the prompt; None if it gives only text."""
    tokens = only_choice(body)["logprobs"]["tokens"]
    return parse_token_id(tokens[prompt_tokens]) if len(tokens) > prompt_tokens else None


def _check_tokenization(body: Mapping[str, Any], tokens: Sequence[Any], prompt: Sequence[int], hf: Any) -> None:
    """Raises RemoteError if the server tokenized the text differently, or into an unknown number of tokens.

    Its log-probabilities would then be of other tokens, and a draft could be accepted without verification. An
    incomplete character cannot be compared by text.
    """
    usage = body.get("usage")
    read = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    over = only_choice(body).get("finish_reason") == "stop" and len(tokens) == len(prompt)
    if read != len(prompt) or not (over or len(tokens) == len(prompt) + 1):
        raise RemoteError(
            f"the server cut {len(prompt)} tokens, sent as text, into {short_repr(read)} (usage.prompt_tokens), and "
            f"gives {len(tokens)} log-probabilities; {_NO_VERDICT}"
        )
    for i, asked in enumerate(prompt):
        own = token_texts(hf, prompt[max(0, i - 1) : i], asked)
        if tokens[i] not in own and parse_token_id(tokens[i]) != asked and REPLACEMENT_CHAR not in own[0]:
            raise RemoteError(
                f"the server cuts the text into other tokens: it has {short_repr(tokens[i])} where {own[1]!r} was "
                f"asked about; {_NO_VERDICT}"
            )


_NO_VERDICT = "no verdict can be made of that. Use a server that takes token ids (vLLM, SGLang)"


def _check_token(token: Any, logprob: Any, top_logprobs: Any, expected_token: int) -> TokenCheck:
    if not isinstance(token, str):
        raise RemoteError(f"the server echoes {type_name(token)} as a token")
    token_id = parse_token_id(token)
    if token_id is not None and token_id != expected_token:
        raise RemoteError(f"the server echoes token {token_id} where {expected_token} was asked about")
    if not isinstance(top_logprobs, dict) or not top_logprobs:
        raise RemoteError(
            f"the server names no likeliest token at a position of the prompt but {type_name(top_logprobs)}"
        )
    logprobs = [_logprob(each) for each in (logprob, *top_logprobs.values())]
    best = max(top_logprobs, key=top_logprobs.__getitem__)
    argmax_token = parse_token_id(best)
    if (token_id is None) != (argmax_token is None):
        raise RemoteError("the server names some tokens by id and some by text")
    if argmax_token is None:
        return TokenCheck(logprobs[0] >= max(logprobs) and REPLACEMENT_CHAR not in token, None)
    return TokenCheck(argmax_token == expected_token, argmax_token)


def _logprob(value: Any) -> float:
    """A log-probability; servers write a very large negative number for none at all."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -float_info.max <= value <= 1e-3:
        raise RemoteError(f"the server gives {short_repr(value)} as a log-probability")
    return float(value)


def _entries(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list):
        raise RemoteError(f"the server returned {type_name(value)} as logprobs.{name} of the prompt (echo)")
    return value
