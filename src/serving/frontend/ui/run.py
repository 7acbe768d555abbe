"""One run: a prompt becomes events, until the answer ends or its reader leaves."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving.core.scores import ROUTE
from serving.frontend.device_gateway import RequestStreams, SessionUpdate, normalize_seed
from serving.frontend.openai.detokenizer import IncrementalDetokenizer, decode
from serving.frontend.openai.errors import ApiError
from serving.frontend.ui.run_metrics import CLOUD_ORIGINS, RunMeter
from serving.frontend.ui.run_request import RunRequest
from serving.frontend.ui.token_trace import DraftedToken, RunObserver
from serving.messages import EmitTokens, GenerationRequest, Origin, PeerRestored

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

UiEvent = tuple[str, dict[str, Any]]
"""Its name, and what it tells."""

_CLOUD_LOST_TEXT = {
    "local": "The cloud cannot be reached. The device goes on alone; what it writes now is marked offline.",
    "wait": "The cloud cannot be reached. The run waits for it; what was written is kept.",
    "fail": "The cloud cannot be reached, and this policy ends a run without it; what was written is kept.",
}


@dataclass
class UiRun:
    """`prompt` are the question's tokens, `device` the node that it is put to; `reach()` says whether it can reach the
    cloud now, as far as anybody knows.
    """

    request: RunRequest
    prompt: tuple[int, ...]
    device: str
    session: str
    streams: RequestStreams
    observer: RunObserver
    meter: RunMeter
    tokenizer: "Tokenizer"
    is_cloud_reachable: Callable[[], bool]
    reported_reachable: bool = field(default=True, init=False)
    """What the reader was told last of the cloud."""
    _detokenizer: IncrementalDetokenizer = field(init=False)
    _num_tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._detokenizer = IncrementalDetokenizer(self.tokenizer.hf)

    async def events(self) -> AsyncGenerator[list[UiEvent], None]:
        """What is known at once, together. Raises ApiError where the answer breaks off; closing it cancels the call."""
        q = self.request
        call = GenerationRequest(
            self.session, self.prompt, q.max_tokens, self.tokenizer.eos_token_ids, q.sampling, routing=q.routing
        )  # fmt: skip
        self.observer.start(self.session, self.device)
        try:
            self.reported_reachable = self.is_cloud_reachable()
            yield [("started", self._start_data()), *([] if self.reported_reachable else self._cloud_notice())]
            while (
                self.reported_reachable != self.is_cloud_reachable()
            ):  # it went or came before there was anybody to tell
                yield self._reachability_events(not self.reported_reachable)
            async with aclosing(self.streams.stream(self.device, normalize_seed(call))) as news:
                async for told, now in news:
                    yield self._update_events(told, now)
        finally:
            self.observer.forget(self.session)

    def _start_data(self) -> dict[str, Any]:
        q = self.request
        return {
            "device": self.device, "policy": q.policy_card.name, "mode": q.mode, "threshold": q.threshold,
            "prompt_tokens": len(self.prompt), "max_tokens": q.max_tokens, "cloud": self.reported_reachable,
        }  # fmt: skip

    def _update_events(self, update: SessionUpdate, now: float) -> list[UiEvent]:
        if not isinstance(update, EmitTokens):
            return self._reachability_events(isinstance(update, PeerRestored))
        record = self.observer.record(self.session)
        found: list[UiEvent] = [
            ("token", self._token_data(token, origin, 1e3 * (now - record.arrived_s)))
            for token, origin in zip(update.tokens, update.origins, strict=True)
        ]
        found.append(("counters", self.meter.read(record, now)))
        if update.ending == "complete":
            found.append(("done", {"finish_reason": self._finish_reason(record.tokens), "remaining_text": self._detokenizer.flush()}))
        elif update.ending:
            raise ApiError.failed(
                not self.request.needs_cloud or (self.reported_reachable and self.is_cloud_reachable())
            )
        return found

    def _reachability_events(self, reachable: bool) -> list[UiEvent]:
        if reachable == self.reported_reachable:
            return []  # another of its nodes
        self.reported_reachable = reachable
        return self._cloud_notice()

    def _cloud_notice(self) -> list[UiEvent]:
        """The policy says what becomes of the run; one that asks nobody is not concerned."""
        action = self.request.policy_card.policy.link_loss.action
        message = "The cloud is back." if self.reported_reachable else _CLOUD_LOST_TEXT[action]
        return (
            []
            if self.request.mode == "small_only"
            else [("cloud", {"reachable": self.reported_reachable, "message": message})]
        )

    def _token_data(self, token: int, origin: Origin, at_ms: float) -> dict[str, Any]:
        look = self.observer.drafted_token(self.session, len(self.prompt) + self._num_tokens, token)
        self._num_tokens += 1
        end = token in self.tokenizer.eos_token_ids
        return {
            "text": self._detokenizer.flush() if end else self._detokenizer.push(token),
            "token": self._token_text(token),
            "end": end,
            "origin": origin,
            "by_cloud": origin in CLOUD_ORIGINS,
            "score": look.scores.get(ROUTE) if look else None,
            "device_token": self._token_text(look.token) if look else None,
            "alternatives": self._alternatives(look),
            "at_ms": round(at_ms, 3),
        }

    def _alternatives(self, trace: DraftedToken | None) -> list[str]:
        return [self._token_text(token) for token in trace.top_candidates] if trace else []

    def _token_text(self, token: int) -> str:
        """One token by itself: its text, or what the tokenizer calls it where it has none."""
        text = decode(self.tokenizer.hf, (token,))
        return text if text and "\ufffd" not in text else str(self.tokenizer.hf.convert_ids_to_tokens(token))

    def _finish_reason(self, tokens: list[int]) -> str:
        return "stop" if tokens and tokens[-1] in self.tokenizer.eos_token_ids else "length"


def encode_sse(events: list[UiEvent]) -> bytes:
    """Events as a browser reads them (text/event-stream)."""
    return b"".join(
        f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode() for name, data in events
    )  # fmt: skip
