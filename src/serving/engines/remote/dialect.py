"""Requests in the dialect of each kind of server, and strict parsing of the responses.

A missing, odd or inconsistent field is an error, and never the end of a text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from serving.engines.remote.errors import RemoteError, short_repr, type_name
from serving.engines.remote.server import RemoteServer

_TOKEN_ID_PREFIX = "token_id:"
_MAX_ID_DIGITS = 10
"""More digits than any token id has."""


@dataclass(frozen=True)
class RemoteCompletion:
    """`token_ids` is None if the server gives none; `stopped` is True if the model itself ended the text."""

    text: str
    token_ids: tuple[int, ...] | None
    stopped: bool
    stop_token: int | None = None
    """The token that ended the text, if the server names it."""


def parse_openai(body: Mapping[str, Any], max_tokens: int, prompt_tokens: int | None) -> RemoteCompletion:
    """Parses OpenAI's form, with vLLM's and SGLang's token ids if present.

    `prompt_tokens` is the length of the prompt; None if it was sent as text.
    """
    choice = only_choice(body)
    text, finish = choice.get("text"), choice.get("finish_reason")
    if not isinstance(text, str):
        raise RemoteError(f"the server's answer has no text but {type_name(text)}")
    if finish not in ("stop", "length"):
        raise RemoteError(
            f"the server ended with finish_reason={short_repr(finish)}; only 'stop' ends a text, and only 'length' a "
            "part of one"
        )
    _check_usage(body.get("usage"), prompt_tokens)
    ids = None if choice.get("token_ids") is None else token_id_list(choice["token_ids"], "token_ids")
    return _check_length(RemoteCompletion(text, ids, finish == "stop", _stop_token(choice)), max_tokens)


def parse_llama_cpp(body: Mapping[str, Any], max_tokens: int, prompt_tokens: int) -> RemoteCompletion:
    """Parses llama.cpp's own form (/completion with return_tokens)."""
    text, why = body.get("content"), body.get("stop_type")
    if not isinstance(text, str):
        raise RemoteError(f"the server's answer has no content but {type_name(text)}; is it a llama.cpp server?")
    if why not in ("eos", "limit"):
        raise RemoteError(f"the server ended with stop_type={short_repr(why)}; only 'eos' is the end of a text")
    if body.get("truncated"):
        raise RemoteError("the server truncated the prompt; give it a longer context (-c), or ask for shorter texts")
    if body.get("tokens_evaluated") != prompt_tokens:
        raise RemoteError(
            f"the server read {short_repr(body.get('tokens_evaluated'))} tokens of a prompt of {prompt_tokens}"
        )
    ids = token_id_list(body.get("tokens"), "tokens")
    return _check_length(RemoteCompletion(text, ids, why == "eos"), max_tokens)


def only_choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        got = f"{len(choices)} choices" if isinstance(choices, list) else type_name(choices)
        raise RemoteError(f"the server's answer has {got} where one choice is due")
    return choices[0]


def token_id_list(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise RemoteError(f"the server's {name} is {type_name(value)} where a list of token ids is due")
    return tuple(value)


def parse_token_id(token: Any) -> int | None:
    """The id in vLLM's `token_id:17`; None for a token that is given as text."""
    if not isinstance(token, str) or not token.startswith(_TOKEN_ID_PREFIX):
        return None
    digits = token[len(_TOKEN_ID_PREFIX) :]
    return int(digits) if digits.isdecimal() and len(digits) <= _MAX_ID_DIGITS else None


def _stop_token(choice: Mapping[str, Any]) -> int | None:
    """vLLM says stop_reason, SGLang matched_stop: an id, a text or null."""
    found: Sequence[Any] = (choice.get("stop_reason"), choice.get("matched_stop"))
    return next((each for each in found if type(each) is int), None)


def _check_usage(usage: Any, prompt_tokens: int | None) -> None:
    """Raises RemoteError if the server read more or fewer prompt tokens than were sent."""
    if prompt_tokens is None or usage is None:
        return
    read = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if read != prompt_tokens:
        raise RemoteError(f"the server read {short_repr(read)} tokens of a prompt of {prompt_tokens}")


def _check_length(result: RemoteCompletion, max_tokens: int) -> RemoteCompletion:
    if result.token_ids is not None:
        if len(result.token_ids) > max_tokens + result.stopped:
            raise RemoteError(f"the server wrote {len(result.token_ids)} tokens where {max_tokens} were asked for")
        if not result.token_ids and not result.stopped:
            raise RemoteError("the server wrote no token, and does not say that the text is over")
    return result


JsonBody = dict[str, Any]


@dataclass(frozen=True)
class RemoteSampling:
    """Sampling options of one request; requests without them are greedy."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


class Dialect(Protocol):
    @property
    def returns_token_ids(self) -> bool:
        """True if completions have token ids."""
        ...

    @property
    def supports_prompt_logprobs(self) -> bool:
        """True if prompts can have log-probabilities."""
        ...

    def completion_request(
        self, server: RemoteServer, prompt: Sequence[int] | str, max_tokens: int, sampling: RemoteSampling | None
    ) -> tuple[str, JsonBody]:
        """(URL, body) of a request for up to `max_tokens` tokens after a prompt."""
        ...

    def parse(self, body: Mapping[str, Any], max_tokens: int, prompt_tokens: int | None) -> RemoteCompletion: ...

    def prompt_logprobs_request(self, server: RemoteServer, prompt: Sequence[int] | str) -> tuple[str, JsonBody]:
        """(URL, body) of a request for the likeliest tokens at a prompt's positions, and one more token."""
        ...

    def tokenize_request(self, server: RemoteServer, text: str) -> tuple[str, JsonBody] | None: ...

    def detokenize_request(self, server: RemoteServer, tokens: Sequence[int]) -> tuple[str, JsonBody, str] | None:
        """(URL, body, name of the text in the response)."""
        ...


@dataclass(frozen=True)
class OpenAi:
    """OpenAI's own fields, and top_k if it is set."""

    returns_token_ids: ClassVar[bool] = False
    supports_prompt_logprobs: ClassVar[bool] = True

    def completion_request(
        self, server: RemoteServer, prompt: Sequence[int] | str, max_tokens: int, sampling: RemoteSampling | None
    ) -> tuple[str, JsonBody]:
        body = {"model": server.model, "prompt": _prompt_field(prompt), "max_tokens": max_tokens}
        return f"{server.api_url}/completions", body | self.extra_fields | (
            self.sampling_fields(sampling) if sampling else {"temperature": 0}
        )

    def parse(self, body: Mapping[str, Any], max_tokens: int, prompt_tokens: int | None) -> RemoteCompletion:
        return parse_openai(body, max_tokens, prompt_tokens)

    def prompt_logprobs_request(self, server: RemoteServer, prompt: Sequence[int] | str) -> tuple[str, JsonBody]:
        url, body = self.completion_request(server, prompt, 1, None)
        return url, body | {"echo": True, "logprobs": 1} | self.logprob_fields

    def tokenize_request(self, server: RemoteServer, text: str) -> tuple[str, JsonBody] | None:  # noqa: ARG002
        return None

    def detokenize_request(self, server: RemoteServer, tokens: Sequence[int]) -> tuple[str, JsonBody, str] | None:  # noqa: ARG002
        return None

    @property
    def extra_fields(self) -> JsonBody:
        return {}

    @property
    def logprob_fields(self) -> JsonBody:
        return {}

    def sampling_fields(self, sampling: RemoteSampling) -> JsonBody:
        limit = {"top_k": sampling.top_k} if sampling.top_k else {}
        return {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed} | limit


@dataclass(frozen=True)
class Sglang(OpenAi):
    """SGLang 0.5: token ids with return_token_ids; log-probabilities of prompts name tokens by text."""

    returns_token_ids: ClassVar[bool] = True

    @property
    def extra_fields(self) -> JsonBody:
        """Includes neutral values for what a model's generation config would otherwise set."""
        neutral = {"top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
        return {"return_token_ids": True, "skip_special_tokens": False} | neutral

    def sampling_fields(self, sampling: RemoteSampling) -> JsonBody:
        return super().sampling_fields(sampling) | {"top_k": sampling.top_k or -1}

    def tokenize_request(self, server: RemoteServer, text: str) -> tuple[str, JsonBody] | None:
        return f"{server.root_url}/tokenize", {"model": server.model, "prompt": text, "add_special_tokens": False}

    def detokenize_request(self, server: RemoteServer, tokens: Sequence[int]) -> tuple[str, JsonBody, str] | None:
        body = {"model": server.model, "tokens": list(tokens), "skip_special_tokens": False}
        return f"{server.root_url}/detokenize", body, "text"


@dataclass(frozen=True)
class Vllm(Sglang):
    """vLLM: token ids in answers and, as `token_id:17`, in log-probabilities."""

    @property
    def logprob_fields(self) -> JsonBody:
        return {"return_tokens_as_token_ids": True}

    def detokenize_request(self, server: RemoteServer, tokens: Sequence[int]) -> tuple[str, JsonBody, str] | None:
        return f"{server.root_url}/detokenize", {"model": server.model, "tokens": list(tokens)}, "prompt"


@dataclass(frozen=True)
class LlamaCpp(OpenAi):
    """llama.cpp's own /completion, because its OpenAI form gives no id of half a character, and ignores echo."""

    returns_token_ids: ClassVar[bool] = True
    supports_prompt_logprobs: ClassVar[bool] = False

    def completion_request(
        self, server: RemoteServer, prompt: Sequence[int] | str, max_tokens: int, sampling: RemoteSampling | None
    ) -> tuple[str, JsonBody]:
        body: JsonBody = {
            "model": server.model, "prompt": _prompt_field(prompt), "n_predict": max_tokens, "return_tokens": True,
            "cache_prompt": True, "samplers": ["temperature", "top_k", "top_p"], "top_k": 0, "top_p": 1.0,
        }  # fmt: skip
        return f"{server.root_url}/completion", body | (
            self.sampling_fields(sampling) if sampling else {"temperature": 0}
        )

    def parse(self, body: Mapping[str, Any], max_tokens: int, prompt_tokens: int | None) -> RemoteCompletion:
        return (
            parse_openai(body, max_tokens, prompt_tokens)
            if prompt_tokens is None
            else parse_llama_cpp(body, max_tokens, prompt_tokens)
        )

    def tokenize_request(self, server: RemoteServer, text: str) -> tuple[str, JsonBody] | None:
        return f"{server.root_url}/tokenize", {"content": text, "add_special": False, "parse_special": True}

    def detokenize_request(self, server: RemoteServer, tokens: Sequence[int]) -> tuple[str, JsonBody, str] | None:
        return f"{server.root_url}/detokenize", {"tokens": list(tokens)}, "content"


DIALECTS: Mapping[str, Dialect] = {"llama_cpp": LlamaCpp(), "vllm": Vllm(), "sglang": Sglang(), "openai": OpenAi()}
DIALECT_BY_OWNER: Mapping[str, str] = {"llamacpp": "llama_cpp", "vllm": "vllm", "sglang": "sglang"}
"""`owned_by` of a server's list of models -> its dialect."""


def _prompt_field(prompt: Sequence[int] | str) -> list[int] | str:
    return prompt if isinstance(prompt, str) else list(prompt)
