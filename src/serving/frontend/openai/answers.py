"""Prompts through the line and the gateway, as parts of text."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from serving.frontend.openai.admission import Line
from serving.frontend.openai.conversations import Conversations
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Gateway
from serving.frontend.openai.request_handlers import Finish
from serving.frontend.openai.tally import Tally
from serving.frontend.openai.writing import Writing
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
