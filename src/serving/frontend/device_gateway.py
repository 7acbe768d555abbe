"""A device of this process as its endpoint sees it: questions become calls, deliveries become pieces.

Calls to the devices of a live driver, and what their users are told.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count

from serving.core.keyed_random import seed_for
from serving.drivers.real_time import RealTimeDriver
from serving.engines.tokenizer import Tokenizer
from serving.frontend.openai.gateway import Conversation, TokenDelta, UnsupportedRequestError
from serving.messages import (
    Command,
    DraftWork,
    EmitTokens,
    Event,
    GenerationRequest,
    Message,
    MessageReceived,
    Outcome,
    PeerLost,
    PeerRestored,
    Request,
    RequestArrived,
    RoutingOptions,
    SamplingParams,
    SendMessage,
    SessionCancelled,
    StartWork,
    Work,
    message_nbytes,
)
from serving.policy.policy import Policy
from serving.policy.slots.routed_offload import RoutedOffload

SessionUpdate = EmitTokens | PeerLost | PeerRestored
"""What a call's user may want to know: tokens, and that the cloud is gone or back."""


class RequestStreams:
    """Posts calls, and hands on what is delivered, each with its time; `notify` adds what else is worth knowing."""

    def __init__(self, driver: RealTimeDriver) -> None:
        self._driver = driver
        self._queues: dict[str, asyncio.Queue[tuple[SessionUpdate, float]]] = {}
        driver.on_emit(self._on_emit)

    async def stream(
        self, device: str, request: GenerationRequest
    ) -> AsyncGenerator[tuple[SessionUpdate, float], None]:
        """All news of a call, up to the delivery with its ending; closing it early cancels the call."""
        news = self._queues[request.session] = asyncio.Queue()
        self._driver.post(self._driver.now(), device, RequestArrived(request))
        ending = ""
        try:
            while not ending:
                told, now = await news.get()
                ending = told.ending if isinstance(told, EmitTokens) else ""
                yield told, now
        finally:
            del self._queues[request.session]
            if not ending:
                self.cancel(device, request.session)

    def cancel(self, device: str, session: str) -> None:
        self._driver.post(self._driver.now(), device, SessionCancelled(session))

    def notify(self, session: str, update: PeerLost | PeerRestored, now: float) -> None:
        if queue := self._queues.get(session):
            queue.put_nowait((update, now))

    def _on_emit(self, deliver: EmitTokens, now: float) -> None:
        if queue := self._queues.get(deliver.session):
            queue.put_nowait((deliver, now))


def normalize_seed(request: GenerationRequest) -> GenerationRequest:
    """The call with the luck of its seed, whatever its session is called: one seed, one text. Greedy calls have one."""
    if not request.sampling:
        return replace(request, seed=seed_for(0, request.session))
    sampling = replace(request.sampling, seed=seed_for(request.sampling.seed, request.session))
    return replace(request, sampling=sampling, seed=sampling.seed)


class DeviceGateway:
    """`serving.frontend.openai.gateway.Gateway` over the node `device` of a live driver, which it watches as an
    observer.
    """

    def __init__(
        self,
        device: str,
        policy: Policy,
        tokenizer: Tokenizer,
        context_len: int,
        is_cloud_reachable: Callable[[], bool],
        greedy: bool = False,
    ) -> None:
        """`greedy`: whoever serves the large model draws nothing."""
        self.model_name, self.created_unix_s, self.tokenizer, self.context_len = (
            policy.name,
            int(time.time()),
            tokenizer,
            context_len,
        )
        self.uplink_nbytes = self.downlink_nbytes = 0
        self._device, self._policy, self._is_cloud_reachable = device, policy, is_cloud_reachable
        self._greedy = greedy or policy.verify.greedy_only
        self._streams: RequestStreams | None = None
        self._cached_lens: dict[str, int | None] = {}
        self._request_numbers, self._boot_id = count(1), secrets.token_hex(4)

    def attach(self, driver: RealTimeDriver) -> None:
        self._streams = RequestStreams(driver)

    @property
    def cloud_reachable(self) -> bool:
        return self._is_cloud_reachable()

    @property
    def ready(self) -> bool:
        alone = self._policy.offload.scope == "none" or self._policy.link_loss.action == "local"
        return self._streams is not None and (alone or self.cloud_reachable)

    @property
    def routed(self) -> RoutedOffload | None:
        return self._policy.offload if isinstance(self._policy.offload, RoutedOffload) else None

    async def generate(
        self,
        prompt: tuple[int, ...],
        max_new_tokens: int,
        sampling: SamplingParams | None,
        conversation: Conversation | None,
        routing: RoutingOptions | None = None,
    ) -> AsyncGenerator[TokenDelta, None]:
        if self._streams is None:
            raise UnsupportedRequestError("the models are still being loaded; ask again in a moment")
        if sampling and self._greedy:
            raise UnsupportedRequestError(f"{self.model_name} decodes greedily only; ask with temperature 0")
        session = self._session_name(conversation.name if conversation else f"call-{next(self._request_numbers)}")
        self._cached_lens[session] = None
        call = GenerationRequest(
            session,
            prompt,
            max_new_tokens,
            self.tokenizer.eos_token_ids,
            sampling,
            keep_cache=conversation is not None,
            routing=routing,
        )
        try:
            async with aclosing(self._streams.stream(self._device, normalize_seed(call))) as news:
                async for told, _ in news:
                    if isinstance(told, EmitTokens):
                        yield self._token_delta(told)
        finally:
            del self._cached_lens[session]

    def _token_delta(self, deliver: EmitTokens) -> TokenDelta:
        cached, self._cached_lens[deliver.session] = self._cached_lens[deliver.session] or 0, 0  # told once
        return TokenDelta(deliver.tokens, deliver.origins, deliver.ending, cached)

    def release(self, conversation: str) -> None:
        if self._streams:
            self._streams.cancel(self._device, self._session_name(conversation))

    def _session_name(self, name: str) -> str:
        """Unlike any of an earlier life of this device, whose sessions the cloud may remember as released."""
        return f"{self._device}.{self._boot_id}.{name}"

    # The observer.

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if isinstance(event, MessageReceived):
            self.downlink_nbytes += message_nbytes(event.message)
        for command in commands:
            self._note_cached_len(command)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None: ...

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:  # noqa: ARG002
        self.uplink_nbytes += nbytes

    def _note_cached_len(self, command: Command) -> None:
        """Where the first work on a session begins is what its caches already held."""
        match command:
            case StartWork(_, DraftWork() as work):
                session, start = work.session, work.start
            case SendMessage(_, Request() as request):
                session, start = request.slice.session, request.slice.start
            case _:
                return
        if self._cached_lens.get(session, 0) is None:
            self._cached_lens[session] = start
