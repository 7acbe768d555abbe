"""Prompts through the line and the gateway, as parts of text.

An answer's JSON, whole or as the events of a stream.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from serving.frontend.openai.admission import AdmissionQueue
from serving.frontend.openai.detokenizer import AnswerWriter
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Gateway, PrefixIndex
from serving.frontend.openai.metrics import RequestStats
from serving.frontend.openai.request_handlers import Choice, FinishReason, RequestHandler
from serving.messages import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """What is to be answered, in tokens; one limit for each prompt."""

    prompts: Sequence[tuple[int, ...]]
    max_new_tokens: Sequence[int]
    sampling: SamplingParams | None
    stop_strings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of one answer; the last part of each has a `finish_reason`."""

    index: int
    text: str
    finish_reason: FinishReason | None = None


class AnswerGenerator:
    """The way from a job to the parts of its answers: a turn in the line, a conversation, then the gateway."""

    def __init__(
        self, gateway: Gateway, queue: AdmissionQueue, prefix_index: PrefixIndex, clock: Callable[[], float]
    ) -> None:
        self.gateway, self.queue, self.prefix_index, self.clock = gateway, queue, prefix_index, clock

    async def generate(self, job: GenerationJob, stats: RequestStats) -> AsyncGenerator[TextDelta, None]:
        """Parts of all answers, in the order of the prompts, in one turn. Raises ApiError; closing it cancels."""
        async with self.queue.admit():
            for index in range(len(job.prompts)):
                async with aclosing(self._generate_one(job, index, stats)) as parts:
                    async for part in parts:
                        yield part

    async def _generate_one(
        self, job: GenerationJob, index: int, stats: RequestStats
    ) -> AsyncGenerator[TextDelta, None]:
        prompt = job.prompts[index]
        stats.begin_prompt(len(prompt))
        writing = AnswerWriter(
            self.gateway.tokenizer, job.stop_strings, lambda origin: stats.count_token(origin, self.clock())
        )
        conversation = self.prefix_index.acquire(prompt)
        try:
            pieces = self.gateway.generate(prompt, job.max_new_tokens[index], job.sampling, conversation)
            async with aclosing(pieces):
                async for piece in pieces:
                    stats.cached_tokens += piece.cached_tokens
                    if text := writing.add(piece):
                        yield TextDelta(index, text)
                    if writing.finish_reason or piece.ending:
                        break
            if not writing.finish_reason:
                raise ApiError.failed(self.gateway.cloud_reachable)
        except BaseException:
            self.prefix_index.discard(conversation)
            raise
        self.prefix_index.store(conversation, prompt, tuple(writing.tokens))
        yield TextDelta(index, "", writing.finish_reason)


@dataclass(frozen=True)
class ResponseBuilder:
    """`num_choices` is how many choices there are."""

    handler: RequestHandler
    id: str
    created: int
    model: str
    num_choices: int
    include_usage: bool

    async def full_response(self, parts: AsyncIterator[TextDelta], stats: RequestStats) -> dict[str, Any]:
        texts, choices = [""] * self.num_choices, []
        async for part in parts:
            texts[part.index] += part.text
            if part.finish_reason:
                choices.append(self.handler.choice(part.index, texts[part.index], part.finish_reason))
        extra = {"usage": stats.usage, "tandem": stats.extension}
        return self._envelope(self.handler.object_name, choices) | extra

    def opening_chunks(self, index: int) -> list[dict[str, Any]]:
        choice = self.handler.opening_choice(index)
        return [self._chunk([choice])] if choice else []

    def chunks(self, part: TextDelta, stats: RequestStats) -> list[dict[str, Any]]:
        """Text first; a finish reason comes alone and, for the last answer, with who wrote it all."""
        found = [self._chunk([self.handler.delta_choice(part.index, part.text, None)])] if part.text else []
        if part.finish_reason:
            last = self._chunk([self.handler.delta_choice(part.index, "", part.finish_reason)])
            found.append(last | {"tandem": stats.extension} if part.index == self.num_choices - 1 else last)
        return found

    def closing_chunks(self, stats: RequestStats) -> list[dict[str, Any]]:
        return [self._chunk([]) | {"usage": stats.usage}] if self.include_usage else []

    def _chunk(self, choices: list[Choice]) -> dict[str, Any]:
        usage = {"usage": None} if self.include_usage else {}
        return self._envelope(self.handler.chunk_name, choices) | usage

    def _envelope(self, object_name: str, choices: list[Choice]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def sse_event(data: dict[str, Any] | str) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
