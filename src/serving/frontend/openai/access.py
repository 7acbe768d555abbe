"""The key that clients show, asked for before anything of a request is read."""

import hmac
from collections.abc import Collection
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.frontend.openai.errors import ApiError

OPEN = frozenset({"/healthz", "/readyz"})
"""For orchestrators, which have no key; they tell nothing about what is asked."""


CLIENT = "tandem.client"
"""Whose key a request showed, in its scope: a digest, or "" where nobody shows any."""


class Keyed:
    """Lets a request pass to `app` if no key is configured, it shows the right one, or its path is open; else answers
    401.
    """

    def __init__(self, app: ASGIApp, key: str | None, free: Collection[str] = OPEN) -> None:
        self._app, self._key, self._free = app, key.encode() if key else None, free
        self._name = sha256(self._key).hexdigest() if self._key else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._free and not self._admits(Headers(scope=scope)):
            refusal = ApiError(
                401,
                "the API key is missing or wrong; send it as `Authorization: Bearer <key>`",
                "invalid_api_key",
                None,
                {"www-authenticate": "Bearer", "connection": "close"},
            )
            await refusal.response()(scope, receive, send)
            return
        await self._app({**scope, CLIENT: self._name}, receive, send)

    def _admits(self, headers: Headers) -> bool:
        if self._key is None:
            return True
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode("latin-1"), self._key)
