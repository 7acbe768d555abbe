"""POST /v1/completions: a text, or its tokens, to be gone on with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.request_handlers import Asked, Choice, Finish
from serving.frontend.openai.schema import Fields, encodable, question

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

MAX_PROMPTS = 16


class Completions:
    """A `serving.frontend.openai.request_handlers.Form`: up to MAX_PROMPTS prompts, one answer each."""

    name, id_prefix = "completions", "cmpl"
    object_name = chunk_name = "text_completion"
    limit: int | None = 16
    """OpenAI's default."""

    def parse(self, fields: Fields, temperature: float, seed: int) -> Asked:
        prompts = _prompts(fields.take("prompt"))
        asked = Asked(question(fields, ("max_tokens",), temperature, seed), prompts)
        fields.finish()
        return asked

    def encode(self, asked: Asked, tokenizer: "Tokenizer") -> Sequence[tuple[int, ...]]:
        found = [tuple(tokenizer.hf(text)["input_ids"]) if isinstance(text, str) else text for text in asked.inputs]
        for tokens in found:
            if not tokens:
                raise ApiError.invalid("the prompt has no token; give a text", "prompt")
            strange = next((token for token in tokens if not 0 <= token < len(tokenizer)), None)
            if strange is not None:
                message = f"prompt has token {strange}; this model's are 0 to {len(tokenizer) - 1}"
                raise ApiError.invalid(message, "prompt")
        return found

    def stops(self, _: "Tokenizer") -> tuple[str, ...]:
        return ()

    def choice(self, index: int, text: str, finish: Finish) -> Choice:
        return self.delta(index, text, finish)

    def opening(self, _: int) -> Choice | None:
        return None

    def delta(self, index: int, text: str, finish: Finish | None) -> Choice:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """A text, token ids, or a list of either."""
    prompts = [value] if isinstance(value, str) or _ids(value) else value
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) or _ids(p) for p in prompts):
        raise ApiError.invalid("prompt is missing or malformed; give a text, token ids, or a list of either", "prompt")
    if len(prompts) > MAX_PROMPTS:
        raise ApiError.invalid(f"there are {len(prompts)} prompts; give at most {MAX_PROMPTS} at once", "prompt")
    return tuple(encodable(p, "prompt") if isinstance(p, str) else tuple(p) for p in prompts)


def _ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)
