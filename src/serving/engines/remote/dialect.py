"""How each kind of server is asked: the same question in its own words.

What a server wrote, read strictly: what is missing, odd or inconsistent is an error, and never the end of a text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from serving.engines.remote.errors import RemoteError, kind, shown
from serving.engines.remote.server import Server

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


Body = dict[str, Any]


@dataclass(frozen=True)
class Draw:
    """How a token is drawn; absent: the likeliest."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


class Dialect(Protocol):
    @property
    def ids(self) -> bool:
        """Does it give token ids?"""
        ...

    @property
    def echoes(self) -> bool:
        """Can its prompts have log-probabilities?"""
        ...

    def write(self, server: Server, prompt: Sequence[int] | str, n: int, draw: Draw | None) -> tuple[str, Body]:
        """Where and how up to `n` tokens behind a prompt are asked for."""
        ...

    def read(self, body: Mapping[str, Any], n: int, prompt: int | None) -> Answer: ...

    def judge(self, server: Server, prompt: Sequence[int] | str) -> tuple[str, Body]:
        """Where and how the likeliest tokens at a prompt's positions are asked for, and one more token."""
        ...

    def tokenize(self, server: Server, text: str) -> tuple[str, Body] | None: ...

    def detokenize(self, server: Server, tokens: Sequence[int]) -> tuple[str, Body, str] | None:
        """Where and how, and the name of the text in the answer."""
        ...


@dataclass(frozen=True)
class OpenAi:
    """OpenAI's own fields, and top_k where it is wanted."""

    ids: ClassVar[bool] = False
    echoes: ClassVar[bool] = True

    def write(self, server: Server, prompt: Sequence[int] | str, n: int, draw: Draw | None) -> tuple[str, Body]:
        body = {"model": server.model, "prompt": _said(prompt), "max_tokens": n}
        return f"{server.url}/completions", body | self.extra | (self.drawn(draw) if draw else {"temperature": 0})

    def read(self, body: Mapping[str, Any], n: int, prompt: int | None) -> Answer:
        return completion(body, n, prompt)

    def judge(self, server: Server, prompt: Sequence[int] | str) -> tuple[str, Body]:
        url, body = self.write(server, prompt, 1, None)
        return url, body | {"echo": True, "logprobs": 1} | self.echo_extra

    def tokenize(self, server: Server, text: str) -> tuple[str, Body] | None:  # noqa: ARG002
        return None

    def detokenize(self, server: Server, tokens: Sequence[int]) -> tuple[str, Body, str] | None:  # noqa: ARG002
        return None

    @property
    def extra(self) -> Body:
        return {}

    @property
    def echo_extra(self) -> Body:
        return {}

    def drawn(self, draw: Draw) -> Body:
        limit = {"top_k": draw.top_k} if draw.top_k else {}
        return {"temperature": draw.temperature, "top_p": draw.top_p, "seed": draw.seed} | limit


@dataclass(frozen=True)
class Sglang(OpenAi):
    """SGLang 0.5: token ids with return_token_ids; log-probabilities of prompts name tokens by text."""

    ids: ClassVar[bool] = True

    @property
    def extra(self) -> Body:
        """What a model's own generation config would otherwise set, too."""
        neutral = {"top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
        return {"return_token_ids": True, "skip_special_tokens": False} | neutral

    def drawn(self, draw: Draw) -> Body:
        return super().drawn(draw) | {"top_k": draw.top_k or -1}

    def tokenize(self, server: Server, text: str) -> tuple[str, Body] | None:
        return f"{server.root}/tokenize", {"model": server.model, "prompt": text, "add_special_tokens": False}

    def detokenize(self, server: Server, tokens: Sequence[int]) -> tuple[str, Body, str] | None:
        body = {"model": server.model, "tokens": list(tokens), "skip_special_tokens": False}
        return f"{server.root}/detokenize", body, "text"


@dataclass(frozen=True)
class Vllm(Sglang):
    """vLLM: token ids in answers and, as `token_id:17`, in log-probabilities."""

    @property
    def echo_extra(self) -> Body:
        return {"return_tokens_as_token_ids": True}

    def detokenize(self, server: Server, tokens: Sequence[int]) -> tuple[str, Body, str] | None:
        return f"{server.root}/detokenize", {"model": server.model, "tokens": list(tokens)}, "prompt"


@dataclass(frozen=True)
class LlamaCpp(OpenAi):
    """llama.cpp's own /completion, because its OpenAI form gives no id of half a character, and ignores echo."""

    ids: ClassVar[bool] = True
    echoes: ClassVar[bool] = False

    def write(self, server: Server, prompt: Sequence[int] | str, n: int, draw: Draw | None) -> tuple[str, Body]:
        body: Body = {
            "model": server.model, "prompt": _said(prompt), "n_predict": n, "return_tokens": True, "cache_prompt": True,
            "samplers": ["temperature", "top_k", "top_p"], "top_k": 0, "top_p": 1.0,
        }  # fmt: skip
        return f"{server.root}/completion", body | (self.drawn(draw) if draw else {"temperature": 0})

    def read(self, body: Mapping[str, Any], n: int, prompt: int | None) -> Answer:
        return completion(body, n, prompt) if prompt is None else native(body, n, prompt)

    def tokenize(self, server: Server, text: str) -> tuple[str, Body] | None:
        return f"{server.root}/tokenize", {"content": text, "add_special": False, "parse_special": True}

    def detokenize(self, server: Server, tokens: Sequence[int]) -> tuple[str, Body, str] | None:
        return f"{server.root}/detokenize", {"tokens": list(tokens)}, "content"


DIALECTS: Mapping[str, Dialect] = {"llama_cpp": LlamaCpp(), "vllm": Vllm(), "sglang": Sglang(), "openai": OpenAi()}
OWNERS: Mapping[str, str] = {"llamacpp": "llama_cpp", "vllm": "vllm", "sglang": "sglang"}
"""Who a server says that it is, in its list of models."""


def _said(prompt: Sequence[int] | str) -> list[int] | str:
    return prompt if isinstance(prompt, str) else list(prompt)
