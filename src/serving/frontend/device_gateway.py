"""Connects an endpoint to a device node of a real-time driver: requests in, token deltas out."""

import asyncio
import secrets
import time
from collections import Counter
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
    draft_works,
    message_nbytes,
)
from serving.policy.policy import Policy
from serving.policy.slots.routed_offload import RoutedOffload

SessionUpdate = EmitTokens | PeerLost | PeerRestored
"""What the stream of a request yields: tokens, and changes of the cloud's reachability."""


class RequestStreams:
    """Posts requests to the driver's devices, and streams the updates of each with their times."""

    def __init__(self, driver: RealTimeDriver) -> None:
        self._driver = driver
        self._queues: dict[str, asyncio.Queue[tuple[SessionUpdate, float]]] = {}
        self._cancelled: Counter[str] = Counter()
        """Session -> its requests that were cancelled and have not ended yet: a later one may have its name."""
        driver.on_emit(self._on_emit)

    async def stream(
        self, device: str, request: GenerationRequest
    ) -> AsyncGenerator[tuple[SessionUpdate, float], None]:
        """Yields updates up to the EmitTokens with an `ending`; closing the generator early cancels the request."""
        updates = self._queues[request.session] = asyncio.Queue()
        self._driver.post(self._driver.now(), device, RequestArrived(request))
        ending = ""
        try:
            while not ending:
                update, now = await updates.get()
                ending = update.ending if isinstance(update, EmitTokens) else ""
                yield update, now
        finally:
            del self._queues[request.session]
            if not ending and not _has_ended(updates):
                self._cancelled[request.session] += 1
                self.cancel(device, request.session)

    def cancel(self, device: str, session: str) -> None:
        self._driver.post(self._driver.now(), device, SessionCancelled(session))

    def notify(self, session: str, update: PeerLost | PeerRestored, now: float) -> None:
        """Adds an update that does not come from the driver's emitted tokens."""
        if queue := self._queues.get(session):
            queue.put_nowait((update, now))

    def _on_emit(self, emitted: EmitTokens, now: float) -> None:
        if emitted.session in self._cancelled:
            if emitted.ending:
                self._cancelled -= Counter([emitted.session])
        elif queue := self._queues.get(emitted.session):
            queue.put_nowait((emitted, now))


def _has_ended(updates: asyncio.Queue[tuple[SessionUpdate, float]]) -> bool:
    """True if the request's last update is among these."""
    found = [updates.get_nowait()[0] for _ in range(updates.qsize())]
    return any(isinstance(update, EmitTokens) and update.ending for update in found)


def normalize_seed(request: GenerationRequest) -> GenerationRequest:
    """Makes all random draws depend on the request's seed and not on its session name: one seed gives one text.

    All greedy requests have the same seed.
    """
    if not request.sampling:
        return replace(request, seed=seed_for(0, request.session))
    sampling = replace(request.sampling, seed=seed_for(request.sampling.seed, request.session))
    return replace(request, sampling=sampling, seed=sampling.seed)


class DeviceGateway:
    """A `serving.frontend.openai.gateway.Gateway` over the node `device` of a driver, which it also observes."""

    def __init__(
        self,
        device: str,
        policy: Policy,
        tokenizer: Tokenizer,
        context_len: int,
        is_cloud_reachable: Callable[[], bool],
        greedy: bool = False,
    ) -> None:
        """`greedy`: True if the server of the large model decodes greedily only."""
        self.model_name, self.created_unix_s = policy.name, int(time.time())
        self.tokenizer, self.context_len = tokenizer, context_len
        self.uplink_nbytes = self.downlink_nbytes = 0
        self._device, self._policy, self._is_cloud_reachable = device, policy, is_cloud_reachable
        self._greedy = greedy
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
        cloud_optional = self._policy.offload.scope == "none" or self._policy.link_loss.action == "local"
        return self._streams is not None and (cloud_optional or self.cloud_reachable)

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
        stop_strings: tuple[str, ...] = (),
    ) -> AsyncGenerator[TokenDelta, None]:
        if self._streams is None:
            raise UnsupportedRequestError("the models are still being loaded; ask again in a moment")
        if sampling and self._greedy:
            raise UnsupportedRequestError(f"{self.model_name} decodes greedily only; ask with temperature 0")
        session = self._session_name(conversation.name if conversation else f"call-{next(self._request_numbers)}")
        self._cached_lens[session] = None
        request = GenerationRequest(
            session,
            prompt,
            max_new_tokens,
            self.tokenizer.eos_token_ids,
            sampling,
            keep_cache=conversation is not None,
            routing=routing,
            stop_strings=stop_strings,
        )
        try:
            async with aclosing(self._streams.stream(self._device, normalize_seed(request))) as updates:
                async for update, _ in updates:
                    if isinstance(update, EmitTokens):
                        yield self._token_delta(update)
        finally:
            del self._cached_lens[session]

    def _token_delta(self, emitted: EmitTokens) -> TokenDelta:
        cached, self._cached_lens[emitted.session] = self._cached_lens[emitted.session] or 0, 0  # reported once
        return TokenDelta(emitted.tokens, emitted.origins, emitted.ending, cached)

    def release(self, conversation: str) -> None:
        if self._streams:
            self._streams.cancel(self._device, self._session_name(conversation))

    def _session_name(self, name: str) -> str:
        """A name that no earlier process of this device used: the cloud may remember those sessions as released."""
        return f"{self._device}.{self._boot_id}.{name}"

    # Observer.

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if isinstance(event, MessageReceived):
            self.downlink_nbytes += message_nbytes(event.message)
        for command in commands:
            self._note_cached_len(command)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None: ...

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:  # noqa: ARG002
        self.uplink_nbytes += nbytes

    def _note_cached_len(self, command: Command) -> None:
        """A session's first work starts behind the tokens that its caches already hold."""
        match command:
            case StartWork(_, work):
                starts = [(draft.session, draft.start) for draft in draft_works(work)]
            case SendMessage(_, Request() as request):
                starts = [(request.slice.session, request.slice.start)]
            case _:
                return
        for session, start in starts:
            if self._cached_lens.get(session, 0) is None:
                self._cached_lens[session] = start
