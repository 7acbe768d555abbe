"""One run of the page: the events from a prompt to the end of its answer."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving.frontend.device_gateway import RequestStreams, SessionUpdate, normalize_seed
from serving.frontend.openai.detokenizer import IncrementalDetokenizer, decode
from serving.frontend.openai.errors import ApiError
from serving.frontend.ui.run_metrics import RunMeter
from serving.frontend.ui.run_request import RunRequest
from serving.frontend.ui.token_trace import DraftedToken, RunObserver
from serving.messages import EmitTokens, GenerationRequest, Origin, PeerRestored
from serving.metrics.definitions import CLOUD_ORIGINS

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

UiEvent = tuple[str, dict[str, Any]]
"""(name, data)."""

_CLOUD_LOST_TEXT = {
    "local": "The cloud cannot be reached. The device goes on alone; what it writes now is marked offline.",
    "wait": "The cloud cannot be reached. The run waits for it; what was written is kept.",
    "fail": "The cloud cannot be reached, and this policy ends a run without it; what was written is kept.",
}


@dataclass
class UiRun:
    """A request on the node `device`. `is_cloud_reachable()` is the last known state of that device's link."""

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
    """The reachability that the last event reported."""
    _detokenizer: IncrementalDetokenizer = field(init=False)
    _num_tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._detokenizer = IncrementalDetokenizer(self.tokenizer.hf)

    async def events(self) -> AsyncGenerator[list[UiEvent], None]:
        """Yields simultaneous events. Raises ApiError if the answer fails. Closing it early cancels the run."""
        wanted = self.request
        request = GenerationRequest(
            self.session,
            self.prompt,
            wanted.max_tokens,
            self.tokenizer.eos_token_ids,
            wanted.sampling,
            routing=wanted.routing,
        )
        self.observer.start(self.session, self.device)
        try:
            self.reported_reachable = self.is_cloud_reachable()
            yield [("started", self._start_data()), *([] if self.reported_reachable else self._cloud_notice())]
            # The link may have changed before the stream began to report changes.
            while self.reported_reachable != self.is_cloud_reachable():
                yield self._reachability_events(not self.reported_reachable)
            async with aclosing(self.streams.stream(self.device, normalize_seed(request))) as updates:
                async for update, now in updates:
                    yield self._update_events(update, now)
        finally:
            self.observer.forget(self.session)

    def _start_data(self) -> dict[str, Any]:
        request = self.request
        return {
            "device": self.device,
            "policy": request.policy_card.name,
            "mode": request.mode,
            "threshold": request.threshold,
            "prompt_tokens": len(self.prompt),
            "max_tokens": request.max_tokens,
            "cloud": self.reported_reachable,
        }

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
            reason, rest = self._finish_reason(record.tokens), self._detokenizer.flush()
            found.append(("done", {"finish_reason": reason, "remaining_text": rest}))
        elif update.ending:
            reachable = self.reported_reachable and self.is_cloud_reachable()
            raise ApiError.failed(not self.request.needs_cloud or reachable)
        return found

    def _reachability_events(self, reachable: bool) -> list[UiEvent]:
        if reachable == self.reported_reachable:
            return []  # another node of the cloud had changed it already
        self.reported_reachable = reachable
        return self._cloud_notice()

    def _cloud_notice(self) -> list[UiEvent]:
        """What the policy does without the cloud; nothing for a run that never uses the cloud."""
        action = self.request.policy_card.policy.link_loss.action
        message = "The cloud is back." if self.reported_reachable else _CLOUD_LOST_TEXT[action]
        if self.request.mode == "small_only":
            return []
        return [("cloud", {"reachable": self.reported_reachable, "message": message})]

    def _token_data(self, token: int, origin: Origin, at_ms: float) -> dict[str, Any]:
        drafted = self.observer.drafted_token(self.session, len(self.prompt) + self._num_tokens, token)
        self._num_tokens += 1
        end, routed = token in self.tokenizer.eos_token_ids, self.request.policy_card.routed
        return {
            "text": self._detokenizer.flush() if end else self._detokenizer.push(token),
            "token": self._token_text(token),
            "end": end,
            "origin": origin,
            "by_cloud": origin in CLOUD_ORIGINS,
            "score": drafted.scores.get(routed.scorer.name) if drafted and routed else None,
            "device_token": self._token_text(drafted.token) if drafted else None,
            "alternatives": self._alternatives(drafted),
            "at_ms": round(at_ms, 3),
        }

    def _alternatives(self, drafted: DraftedToken | None) -> list[str]:
        return [self._token_text(token) for token in drafted.top_candidates] if drafted else []

    def _token_text(self, token: int) -> str:
        """The text of one token, or its name in the vocabulary if it has no text."""
        text = decode(self.tokenizer.hf, (token,))
        return text if text and "\ufffd" not in text else str(self.tokenizer.hf.convert_ids_to_tokens(token))

    def _finish_reason(self, tokens: list[int]) -> str:
        return "stop" if tokens and tokens[-1] in self.tokenizer.eos_token_ids else "length"


def encode_sse(events: list[UiEvent]) -> bytes:
    """Events as text/event-stream."""
    return b"".join(f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode() for name, data in events)
