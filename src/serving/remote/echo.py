"""What a server would have written at each position of a prompt: `echo` with `logprobs`, as vLLM and SGLang answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from serving.remote.answer import by_id, kind, only_choice
from serving.remote.error import RemoteError
from serving.remote.tokens import HALF


@dataclass(frozen=True)
class Opinion:
    """On one token: is it the likeliest? `best` is the likeliest one's id, None where the server gives only its text;
    several halves of characters have one text, so then they are in doubt, and do not agree.
    """

    agrees: bool
    best: int | None


def opinions(body: Mapping[str, Any], prompt: Sequence[int], checked: int) -> list[Opinion]:
    """On the last `checked` tokens of the prompt. Raises RemoteError for anything but one entry a token."""
    found = only_choice(body).get("logprobs")
    if not isinstance(found, dict):
        raise RemoteError(f"the server returned {kind(found)} as logprobs of the prompt (echo)")
    tokens, own, tops = (_entries(found, name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if {len(own), len(tops)} != {len(tokens)} or not len(prompt) <= len(tokens) <= len(prompt) + 1:
        raise RemoteError(
            f"the server returned {len(tokens)}, {len(own)} and {len(tops)} log-probabilities for {len(prompt)} tokens "
            "and one more; it does not echo prompts"
        )
    at = range(len(prompt) - checked, len(prompt))
    return [_opinion(tokens[i], own[i], tops[i], prompt[i]) for i in at]


def added(body: Mapping[str, Any], prompt: int) -> int | None:
    """The id of the token that the server wrote behind the prompt, if it says it."""
    tokens = only_choice(body)["logprobs"]["tokens"]
    return by_id(tokens[prompt]) if len(tokens) > prompt else None


def _opinion(token: Any, own: Any, tops: Any, asked: int) -> Opinion:
    if not isinstance(token, str):
        raise RemoteError(f"the server echoes {kind(token)} as a token")
    told = by_id(token)
    if told is not None and told != asked:
        raise RemoteError(f"the server echoes token {told} where {asked} was asked about")
    if not isinstance(tops, dict) or not tops:
        raise RemoteError(f"the server names no likeliest token at a position of the prompt but {kind(tops)}")
    chances = [_chance(each) for each in (own, *tops.values())]
    best = max(tops, key=tops.__getitem__)
    named = by_id(best)
    if (told is None) != (named is None):
        raise RemoteError("the server names some tokens by id and some by text")
    if named is None:
        return Opinion(chances[0] >= max(chances) and HALF not in token, None)
    return Opinion(named == asked, named)


def _chance(value: Any) -> float:
    """A log-probability; servers write a very large negative number for none at all."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value > 1e-3:
        raise RemoteError(f"the server gives {value!r} as a log-probability")
    return float(value)


def _entries(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list):
        raise RemoteError(f"the server returned {kind(value)} as logprobs.{name} of the prompt (echo)")
    return value
