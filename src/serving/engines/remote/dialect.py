"""How each kind of server is asked: the same question in its own words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from serving.engines.remote.answer import Answer, completion, native
from serving.engines.remote.server import Server

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
