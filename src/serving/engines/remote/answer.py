"""What a server wrote, read strictly: what is missing, odd or inconsistent is an error, and never the end of a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.engines.remote.errors import RemoteError
from serving.engines.remote.shown import kind, shown

_BY_ID = "token_id:"
_DIGITS = 10
"""Of the longest id that anybody has."""


@dataclass(frozen=True)
class Answer:
    """`ids` is None where the server gives no token ids; `stopped` is that the model itself ended the text."""

    text: str
    ids: tuple[int, ...] | None
    stopped: bool
    end: int | None = None
    """The token that ended it, where the server names it."""


def completion(body: Mapping[str, Any], asked: int, prompt: int | None) -> Answer:
    """OpenAI's form, with vLLM's and SGLang's token ids where they are there.

    Args:
        asked: tokens at most.
        prompt: how many tokens the prompt had; None where it went as text.
    """
    choice = only_choice(body)
    text, finish = choice.get("text"), choice.get("finish_reason")
    if not isinstance(text, str):
        raise RemoteError(f"the server's answer has no text but {kind(text)}")
    if finish not in ("stop", "length"):
        raise RemoteError(
            f"the server ended with finish_reason={shown(finish)}; only 'stop' ends a text, and only 'length' a "
            "part of one"
        )
    _check_usage(body.get("usage"), prompt)
    ids = None if choice.get("token_ids") is None else whole_numbers(choice["token_ids"], "token_ids")
    return _checked(Answer(text, ids, finish == "stop", _end(choice)), asked)


def native(body: Mapping[str, Any], asked: int, prompt: int) -> Answer:
    """llama.cpp's own form (/completion with return_tokens)."""
    text, why = body.get("content"), body.get("stop_type")
    if not isinstance(text, str):
        raise RemoteError(f"the server's answer has no content but {kind(text)}; is it a llama.cpp server?")
    if why not in ("eos", "limit"):
        raise RemoteError(f"the server ended with stop_type={shown(why)}; only 'eos' is the end of a text")
    if body.get("truncated"):
        raise RemoteError("the server truncated the prompt; give it a longer context (-c), or ask for shorter texts")
    if body.get("tokens_evaluated") != prompt:
        raise RemoteError(f"the server read {shown(body.get('tokens_evaluated'))} tokens of a prompt of {prompt}")
    ids = whole_numbers(body.get("tokens"), "tokens")
    return _checked(Answer(text, ids, why == "eos"), asked)


def only_choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        got = f"{len(choices)} choices" if isinstance(choices, list) else kind(choices)
        raise RemoteError(f"the server's answer has {got} where one choice is due")
    return choices[0]


def whole_numbers(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise RemoteError(f"the server's {name} is {kind(value)} where a list of token ids is due")
    return tuple(value)


def by_id(token: Any) -> int | None:
    """The id in vLLM's `token_id:17`; None for a token that is given as text."""
    if not isinstance(token, str) or not token.startswith(_BY_ID):
        return None
    digits = token[len(_BY_ID) :]
    return int(digits) if digits.isdecimal() and len(digits) <= _DIGITS else None


def _end(choice: Mapping[str, Any]) -> int | None:
    """vLLM says stop_reason, SGLang matched_stop: an id, a text or null."""
    found: Sequence[Any] = (choice.get("stop_reason"), choice.get("matched_stop"))
    return next((each for each in found if type(each) is int), None)


def _check_usage(usage: Any, prompt: int | None) -> None:
    """A prompt that was cut or added to is another question."""
    if prompt is None or usage is None:
        return
    read = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if read != prompt:
        raise RemoteError(f"the server read {shown(read)} tokens of a prompt of {prompt}")


def _checked(answer: Answer, asked: int) -> Answer:
    if answer.ids is not None:
        if len(answer.ids) > asked + answer.stopped:
            raise RemoteError(f"the server wrote {len(answer.ids)} tokens where {asked} were asked for")
        if not answer.ids and not answer.stopped:
            raise RemoteError("the server wrote no token, and does not say that the text is over")
    return answer
