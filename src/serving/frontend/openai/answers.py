"""Prompts through the line and the gateway, as parts of text.

An answer's JSON, whole or as the events of a stream.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from serving.frontend.openai.admission import Line
from serving.frontend.openai.detokenizer import Writing
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Conversations, Gateway
from serving.frontend.openai.metrics import Tally
from serving.frontend.openai.request_handlers import Choice, Finish, Form
from serving.messages import Sampling


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be answered, in tokens; one limit for each prompt."""

    prompts: Sequence[tuple[int, ...]]
    limits: Sequence[int]
    sampling: Sampling | None
    stops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Text of one answer; the last part of each has a `finish`."""

    index: int
    text: str
    finish: Finish | None = None


class Answers:
    """The way from a job to the parts of its answers: a turn in the line, a conversation, then the gateway."""

    def __init__(self, gateway: Gateway, line: Line, conversations: Conversations, clock: Callable[[], float]) -> None:
        self.gateway, self.line, self.conversations, self.clock = gateway, line, conversations, clock

    async def answer(self, job: Job, tally: Tally) -> AsyncGenerator[Part, None]:
        """Parts of all answers, in the order of the prompts, in one turn. Raises ApiError; closing it cancels."""
        async with self.line.turn():
            for index in range(len(job.prompts)):
                async with aclosing(self._one(job, index, tally)) as parts:
                    async for part in parts:
                        yield part

    async def _one(self, job: Job, index: int, tally: Tally) -> AsyncGenerator[Part, None]:
        prompt = job.prompts[index]
        tally.begin(len(prompt))
        writing = Writing(self.gateway.tokenizer, job.stops, lambda origin: tally.count(origin, self.clock()))
        conversation = self.conversations.take(prompt)
        try:
            pieces = self.gateway.ask(prompt, job.limits[index], job.sampling, conversation)
            async with aclosing(pieces):
                async for piece in pieces:
                    tally.cached += piece.cached
                    if text := writing.write(piece):
                        yield Part(index, text)
                    if writing.finish or piece.ending:
                        break
            if not writing.finish:
                raise ApiError.failed(self.gateway.cloud)
        except BaseException:
            self.conversations.drop(conversation)
            raise
        self.conversations.park(conversation, prompt, tuple(writing.tokens))
        yield Part(index, "", writing.finish)


@dataclass(frozen=True)
class Reply:
    """`answers` is how many choices there are."""

    form: Form
    id: str
    created: int
    model: str
    answers: int
    include_usage: bool

    async def whole(self, parts: AsyncIterator[Part], tally: Tally) -> dict[str, Any]:
        texts, choices = [""] * self.answers, []
        async for part in parts:
            texts[part.index] += part.text
            if part.finish:
                choices.append(self.form.choice(part.index, texts[part.index], part.finish))
        extra = {"usage": tally.usage, "tandem": tally.tandem}
        return self._envelope(self.form.object_name, choices) | extra

    def opening(self, index: int) -> list[dict[str, Any]]:
        choice = self.form.opening(index)
        return [self._chunk([choice])] if choice else []

    def chunks(self, part: Part, tally: Tally) -> list[dict[str, Any]]:
        """Text first; a finish reason comes alone and, for the last answer, with who wrote it all."""
        found = [self._chunk([self.form.delta(part.index, part.text, None)])] if part.text else []
        if part.finish:
            last = self._chunk([self.form.delta(part.index, "", part.finish)])
            found.append(last | {"tandem": tally.tandem} if part.index == self.answers - 1 else last)
        return found

    def closing(self, tally: Tally) -> list[dict[str, Any]]:
        return [self._chunk([]) | {"usage": tally.usage}] if self.include_usage else []

    def _chunk(self, choices: list[Choice]) -> dict[str, Any]:
        usage = {"usage": None} if self.include_usage else {}
        return self._envelope(self.form.chunk_name, choices) | usage

    def _envelope(self, object_name: str, choices: list[Choice]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def event(data: dict[str, Any] | str) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
