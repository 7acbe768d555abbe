"""One run: a prompt becomes events, until the answer ends or its reader leaves."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving.core.scores import ROUTE
from serving.frontend.device_gateway import Calls, News, nameless
from serving.frontend.openai.detokenizer import Decoder, decode
from serving.frontend.openai.errors import ApiError
from serving.frontend.ui.measures import BY_THE_CLOUD, Meter
from serving.frontend.ui.question import Question
from serving.frontend.ui.token_trace import Look, Watch
from serving.messages import Call, Deliver, Joined, Origin

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

Event = tuple[str, dict[str, Any]]
"""Its name, and what it tells."""

_GONE = {
    "local": "The cloud cannot be reached. The device goes on alone; what it writes now is marked offline.",
    "wait": "The cloud cannot be reached. The run waits for it; what was written is kept.",
    "fail": "The cloud cannot be reached, and this policy ends a run without it; what was written is kept.",
}


@dataclass
class Run:
    """`prompt` are the question's tokens, `device` the node that it is put to; `reach()` says whether it can reach the
    cloud now, as far as anybody knows.
    """

    question: Question
    prompt: tuple[int, ...]
    device: str
    session: str
    calls: Calls
    watch: Watch
    meter: Meter
    tokenizer: "Tokenizer"
    reach: Callable[[], bool]
    cloud: bool = field(default=True, init=False)
    """What the reader was told last of the cloud."""
    _decoder: Decoder = field(init=False)
    _tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._decoder = Decoder(self.tokenizer.hf)

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """What is known at once, together. Raises ApiError where the answer breaks off; closing it cancels the call."""
        q = self.question
        call = Call(
            self.session, self.prompt, q.max_tokens, self.tokenizer.ends, q.sampling, routing=q.routing
        )  # fmt: skip
        self.watch.begin(self.session, self.device)
        try:
            self.cloud = self.reach()
            yield [("begun", self._begun()), *([] if self.cloud else self._notice())]
            while self.cloud != self.reach():  # it went or came before there was anybody to tell
                yield self._cloud(not self.cloud)
            async with aclosing(self.calls.follow(self.device, nameless(call))) as news:
                async for told, now in news:
                    yield self._events(told, now)
        finally:
            self.watch.forget(self.session)

    def _begun(self) -> dict[str, Any]:
        q = self.question
        return {
            "device": self.device, "policy": q.offer.name, "mode": q.mode, "threshold": q.threshold,
            "prompt_tokens": len(self.prompt), "max_tokens": q.max_tokens, "cloud": self.cloud,
        }  # fmt: skip

    def _events(self, told: News, now: float) -> list[Event]:
        if not isinstance(told, Deliver):
            return self._cloud(isinstance(told, Joined))
        record = self.watch.record(self.session)
        found: list[Event] = [
            ("token", self._token(token, origin, 1e3 * (now - record.arrived_s)))
            for token, origin in zip(told.tokens, told.origins, strict=True)
        ]
        found.append(("counters", self.meter.read(record, now)))
        if told.ending == "complete":
            found.append(("done", {"ending": self._finish(record.tokens), "tail": self._decoder.flush()}))
        elif told.ending:
            raise ApiError.failed(not self.question.needs_cloud or (self.cloud and self.reach()))
        return found

    def _cloud(self, reachable: bool) -> list[Event]:
        if reachable == self.cloud:
            return []  # another of its nodes
        self.cloud = reachable
        return self._notice()

    def _notice(self) -> list[Event]:
        """The policy says what becomes of the run; one that asks nobody is not concerned."""
        action = self.question.offer.policy.link_loss.action
        message = "The cloud is back." if self.cloud else _GONE[action]
        return [] if self.question.mode == "small_only" else [("cloud", {"reachable": self.cloud, "message": message})]

    def _token(self, token: int, origin: Origin, at_ms: float) -> dict[str, Any]:
        look = self.watch.look(self.session, len(self.prompt) + self._tokens, token)
        self._tokens += 1
        end = token in self.tokenizer.ends
        return {
            "text": self._decoder.flush() if end else self._decoder.push(token),
            "token": self._name(token),
            "end": end,
            "origin": origin,
            "cloud": origin in BY_THE_CLOUD,
            "score": look.scores.get(ROUTE) if look else None,
            "own": self._name(look.token) if look else None,
            "alternatives": self._alternatives(look),
            "at_ms": round(at_ms, 3),
        }

    def _alternatives(self, look: Look | None) -> list[str]:
        return [self._name(token) for token in look.tops] if look else []

    def _name(self, token: int) -> str:
        """One token by itself: its text, or what the tokenizer calls it where it has none."""
        text = decode(self.tokenizer.hf, (token,))
        return text if text and "\ufffd" not in text else str(self.tokenizer.hf.convert_ids_to_tokens(token))

    def _finish(self, tokens: list[int]) -> str:
        return "stop" if tokens and tokens[-1] in self.tokenizer.ends else "length"


def lines(events: list[Event]) -> bytes:
    """Events as a browser reads them (text/event-stream)."""
    return b"".join(
        f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode() for name, data in events
    )  # fmt: skip
