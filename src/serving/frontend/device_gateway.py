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
from serving.drivers.real_time import Live
from serving.engines.tokenizer import Tokenizer
from serving.frontend.openai.gateway import Conversation, Piece, RefusedError
from serving.messages import (
    Begin,
    Call,
    Cancelled,
    Command,
    Deliver,
    Event,
    Generate,
    Joined,
    Lost,
    Message,
    Outcome,
    Received,
    Request,
    Routing,
    Sampling,
    Send,
    Start,
    Work,
    message_nbytes,
)
from serving.policy.policy import Policy
from serving.policy.slots.routed_offload import Routed

News = Deliver | Lost | Joined
"""What a call's user may want to know: tokens, and that the cloud is gone or back."""


class Calls:
    """Posts calls, and hands on what is delivered, each with its time; `tell` adds what else is worth knowing."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._news: dict[str, asyncio.Queue[tuple[News, float]]] = {}
        live.on_deliver(self._delivered)

    async def follow(self, device: str, call: Call) -> AsyncGenerator[tuple[News, float], None]:
        """All news of a call, up to the delivery with its ending; closing it early cancels the call."""
        news = self._news[call.session] = asyncio.Queue()
        self._live.post(self._live.now(), device, Begin(call))
        ending = ""
        try:
            while not ending:
                told, now = await news.get()
                ending = told.ending if isinstance(told, Deliver) else ""
                yield told, now
        finally:
            del self._news[call.session]
            if not ending:
                self.cancel(device, call.session)

    def cancel(self, device: str, session: str) -> None:
        self._live.post(self._live.now(), device, Cancelled(session))

    def tell(self, session: str, news: Lost | Joined, now: float) -> None:
        if queue := self._news.get(session):
            queue.put_nowait((news, now))

    def _delivered(self, deliver: Deliver, now: float) -> None:
        if queue := self._news.get(deliver.session):
            queue.put_nowait((deliver, now))


def nameless(call: Call) -> Call:
    """The call with the luck of its seed, whatever its session is called: one seed, one text. Greedy calls have one."""
    if not call.sampling:
        return replace(call, seed=seed_for(0, call.session))
    sampling = replace(call.sampling, seed=seed_for(call.sampling.seed, call.session))
    return replace(call, sampling=sampling, seed=sampling.seed)


class DeviceGateway:
    """`serving.frontend.openai.gateway.Gateway` over the node `device` of a live driver, which it watches as an
    observer.
    """

    def __init__(
        self,
        device: str,
        policy: Policy,
        tokenizer: Tokenizer,
        context: int,
        cloud: Callable[[], bool],
        greedy: bool = False,
    ) -> None:
        """`greedy`: whoever serves the large model draws nothing."""
        self.model, self.created, self.tokenizer, self.context = policy.name, int(time.time()), tokenizer, context
        self.uplink_nbytes = self.downlink_nbytes = 0
        self._device, self._policy, self._reach = device, policy, cloud
        self._greedy = greedy or policy.verify.greedy
        self._calls: Calls | None = None
        self._cached: dict[str, int | None] = {}
        self._names, self._boot = count(1), secrets.token_hex(4)

    def play(self, live: Live) -> None:
        self._calls = Calls(live)

    @property
    def cloud(self) -> bool:
        return self._reach()

    @property
    def ready(self) -> bool:
        alone = self._policy.offload.reach == "none" or self._policy.link_loss.action == "local"
        return self._calls is not None and (alone or self.cloud)

    @property
    def routed(self) -> Routed | None:
        return self._policy.offload if isinstance(self._policy.offload, Routed) else None

    async def ask(
        self,
        prompt: tuple[int, ...],
        limit: int,
        sampling: Sampling | None,
        conversation: Conversation | None,
        routing: Routing | None = None,
    ) -> AsyncGenerator[Piece, None]:
        if self._calls is None:
            raise RefusedError("the models are still being loaded; ask again in a moment")
        if sampling and self._greedy:
            raise RefusedError(f"{self.model} decodes greedily only; ask with temperature 0")
        session = self._session(conversation.name if conversation else f"call-{next(self._names)}")
        self._cached[session] = None
        call = Call(
            session, prompt, limit, self.tokenizer.ends, sampling, keep=conversation is not None, routing=routing
        )
        try:
            async with aclosing(self._calls.follow(self._device, nameless(call))) as news:
                async for told, _ in news:
                    if isinstance(told, Deliver):
                        yield self._piece(told)
        finally:
            del self._cached[session]

    def _piece(self, deliver: Deliver) -> Piece:
        cached, self._cached[deliver.session] = self._cached[deliver.session] or 0, 0  # told once
        return Piece(deliver.tokens, deliver.origins, deliver.ending, cached)

    def forget(self, conversation: str) -> None:
        if self._calls:
            self._calls.cancel(self._device, self._session(conversation))

    def _session(self, name: str) -> str:
        """Unlike any of an earlier life of this device, whose sessions the cloud may remember as released."""
        return f"{self._device}.{self._boot}.{name}"

    # The observer.

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if isinstance(event, Received):
            self.downlink_nbytes += message_nbytes(event.message)
        for command in commands:
            self._note(command)

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None: ...

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:  # noqa: ARG002
        self.uplink_nbytes += nbytes

    def _note(self, command: Command) -> None:
        """Where the first work on a session begins is what its caches already held."""
        match command:
            case Start(_, Generate() as work):
                session, start = work.session, work.start
            case Send(_, Request() as request):
                session, start = request.rows.session, request.rows.start
            case _:
                return
        if self._cached.get(session, 0) is None:
            self._cached[session] = start
