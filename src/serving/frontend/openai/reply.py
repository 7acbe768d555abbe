"""An answer's JSON, whole or as the events of a stream."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from serving.frontend.openai.answers import Part
from serving.frontend.openai.request_handlers import Choice, Form
from serving.frontend.openai.tally import Tally


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
