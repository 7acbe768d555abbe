"""A request for text, from its bytes to the last event; one instance a URL."""

import secrets
import time
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from serving.frontend.openai.access import read
from serving.frontend.openai.admission import StalledError, patient, while_present
from serving.frontend.openai.answers import Part, Reply, event
from serving.frontend.openai.metrics import Tally
from serving.frontend.openai.request_handlers import Asked, Form
from serving.frontend.openai.service import Service, as_api_error

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Generation:
    """An ASGI application for one form of request."""

    def __init__(self, service: Service, form: Form) -> None:
        self.service, self.form = service, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, tally = self.service.endpoint, Tally(self.service.clock())
        client = _Client(scope, receive, patient(send, endpoint.stall_s), tally)
        try:
            raw = await read(Request(scope, receive), endpoint.max_body_nbytes, endpoint.body_s)
            await while_present(receive, self._answer(raw, client))
        except ClientDisconnect:
            pass  # its request ended with it: there is nobody to answer
        except StalledError:
            tally.outcome = "stalled"  # the server closes the connection, since the response is not complete
        except Exception as error:
            await client.refuse(error)
        finally:
            self.service.metrics.finished(self.form.name, tally)

    async def _answer(self, raw: bytes, client: "_Client") -> None:
        asked, job = await self.service.read(self.form, raw)
        reply = self._reply(asked, len(job.prompts))
        answer = self.service.running.follow(self.service.answers.answer(job, client.tally))
        async with aclosing(answer) as parts:
            if not asked.question.stream:
                await client.whole(await reply.whole(parts, client.tally))
                return
            await client.begin(await anext(parts), reply)
            try:
                async for part in parts:
                    await client.go_on(part, reply)
                await client.end(reply)
            except StalledError:
                raise
            except Exception as error:
                await client.break_off(error)

    def _reply(self, asked: Asked, answers: int) -> Reply:
        name = f"{self.form.id_prefix}-{secrets.token_hex(12)}"
        return Reply(self.form, name, int(time.time()), self.service.model, answers, asked.question.include_usage)


class _Client:
    """What is sent to one client; the tally learns the outcome before the last byte goes."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, tally: Tally) -> None:
        self._scope, self._receive, self._send, self.tally = scope, receive, send, tally
        self._opened = -1

    async def whole(self, body: dict[str, Any]) -> None:
        self.tally.outcome = body["choices"][-1]["finish_reason"]
        await JSONResponse(body)(self._scope, self._receive, self._send)

    async def refuse(self, error: Exception) -> None:
        """An error before anything was sent."""
        refusal = as_api_error(error)
        self.tally.outcome = refusal.code or "error"
        await refusal.response()(self._scope, self._receive, self._send)

    async def begin(self, part: Part, reply: Reply) -> None:
        """The first text is there, so nothing can be refused any more."""
        await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self.go_on(part, reply)

    async def go_on(self, part: Part, reply: Reply) -> None:
        chunks = reply.chunks(part, self.tally)
        if part.index > self._opened:
            self._opened, chunks = part.index, reply.opening(part.index) + chunks
        if part.finish and part.index == reply.answers - 1:
            self.tally.outcome = part.finish
        await self._events(*chunks)

    async def end(self, reply: Reply) -> None:
        await self._events(*reply.closing(self.tally), "[DONE]", more=False)

    async def break_off(self, error: Exception) -> None:
        refusal = as_api_error(error)
        self.tally.outcome = refusal.code or "error"
        await self._events(refusal.body, more=False)

    async def _events(self, *data: dict[str, Any] | str, more: bool = True) -> None:
        """One network write for what is known at once; none for nothing, but for the end."""
        await self._send({"type": "http.response.body", "body": b"".join(map(event, data)), "more_body": more})
