"""Calls to the devices of a live driver, and what their users are told."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

from serving.core.keyed_random import seed_for
from serving.drivers.real_time import Live
from serving.messages import Begin, Call, Cancelled, Deliver, Joined, Lost

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
