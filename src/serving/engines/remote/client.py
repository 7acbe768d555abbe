"""Questions to a server over HTTP: within a time, within bytes, again where that helps; an answer or an error."""

import json
import ssl
import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from serving.engines.remote.errors import RemoteError, keep_secret, plain
from serving.engines.remote.retry import RETRIED, Rest, pause_s, retry_after_s
from serving.engines.remote.server import Server

if TYPE_CHECKING:
    from httpx2 import Response

_EXCERPT = 240


class Client:
    """May be used by several threads. `sleep` and `clock` are seconds; `waits`: see `Rest`.

    Raises ValueError for a key that must not be sent or an authority that cannot be read.
    """

    def __init__(
        self,
        server: Server,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        waits: bool = False,
    ) -> None:
        import httpx2

        self.server, self._sleep, self._clock = server, sleep, clock
        self._rest = Rest(server.rest_s, waits, sleep, clock)
        self.failures, self._lock = 0, Lock()
        headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "tandem"}
        if key := server.key():
            keep_secret(key)
            headers["authorization"] = f"Bearer {key}"
        self._http = httpx2.Client(
            headers=headers,
            verify=_trust(server),
            timeout=httpx2.Timeout(server.timeout_s, connect=server.connect_timeout_s),
            limits=httpx2.Limits(max_connections=server.concurrency),
            follow_redirects=False,
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"Client({self.server.named})"

    def close(self) -> None:
        self._http.close()

    def get(self, url: str) -> dict[str, Any]:
        return self._ask("GET", url, None)

    def post(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer, a JSON object. Raises RemoteError."""
        return self._ask("POST", url, body)

    def _ask(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        if not self._rest.over():
            self._count()
            raise RemoteError(f"{self._who} is left alone for a moment, after: {self._rest.why}", passing=True)
        for attempt in range(self.server.retries + 1):
            wait_s = None
            try:
                answer = self._once(method, url, body)
            except _RetriedError as problem:
                failed, wait_s = problem.why, problem.wait_s
            except RemoteError as problem:
                self._count()
                if problem.barred:
                    self._rest.begin(str(problem).removeprefix(self._who).lstrip(), barred=True)
                raise
            else:
                self._rest.answered()
                return answer
            if attempt < self.server.retries:
                self._sleep(pause_s(self.server, attempt, wait_s))
        self._count()
        self._rest.begin(failed)
        raise RemoteError(
            f"{self._who} {failed}, in {self.server.retries + 1} attempts; is it running, and reachable from here?",
            passing=True,
        )

    def _count(self) -> None:
        with self._lock:
            self.failures += 1

    def _once(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        import httpx2

        deadline_s = self._clock() + self.server.timeout_s
        try:
            with self._http.stream(method, url, json=body) as response:
                raw = self._read(response, deadline_s)
                return self._opened(response, raw)
        except httpx2.TimeoutException as problem:
            raise _RetriedError(f"did not answer in time ({type(problem).__name__})") from None
        except httpx2.DecodingError:
            raise RemoteError(f"{self._who} answered in an encoding that nobody asked for") from None
        except httpx2.TransportError as problem:
            said = plain(str(problem), _EXCERPT)
            if "certificate" in said.lower():
                raise RemoteError(
                    f"{self._who} shows a certificate that is not believed ({said}); name its authority in "
                    "model.cloud.server.authority"
                ) from None
            raise _RetriedError(f"was not reached ({type(problem).__name__}: {said})") from None
        except httpx2.HTTPError as problem:
            raise RemoteError(f"{self._who} could not be asked ({type(problem).__name__})") from None

    def _read(self, response: "Response", deadline_s: float) -> bytes:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise RemoteError(f"{self._who} answered in an encoding that nobody asked for")
        found, most = bytearray(), self.server.max_answer_nbytes
        for chunk in response.iter_bytes():
            found += chunk
            if len(found) > most:
                raise RemoteError(
                    f"{self._who} answered more than {most} bytes, the most that is read "
                    "(model.cloud.server.max_answer_nbytes)"
                )
            if self._clock() > deadline_s:
                raise _RetriedError(f"did not come to the end of its answer in {self.server.timeout_s:g} s")
        return bytes(found)

    def _opened(self, response: "Response", raw: bytes) -> dict[str, Any]:
        status = response.status_code
        if status in RETRIED:
            raise _RetriedError(f"said {status}{self._said(raw)}", retry_after_s(response.headers))
        if 300 <= status < 400:
            raise RemoteError(
                f"{self._who} points elsewhere ({status}), and nobody is sent there; give the right "
                "model.cloud.server.base_url",
                status=status,
            )
        if status != 200:
            hint = f"; is the key in {self.server.key_env} right?" if status in (401, 403) else ""
            said = f"{self._who} refused the question: {status}{self._said(raw)}{hint}"
            raise RemoteError(said, status=status)
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError) as problem:
            raise RemoteError(f"{self._who} broke off, or answered no JSON ({type(problem).__name__})") from None
        if not isinstance(answer, dict):
            raise RemoteError(f"{self._who} answered a {type(answer).__name__} where an object was due")
        if answer.get("error"):
            raise RemoteError(f"{self._who} answered 200 with an error{self._said(raw)}")
        return answer

    def _said(self, raw: bytes) -> str:
        """What the server says went wrong, as far as it may be shown."""
        text = raw.decode("utf-8", "replace")
        try:
            error = json.loads(text)["error"]
            text = error if isinstance(error, str) else str(error["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return f" ({said})" if (said := plain(text, _EXCERPT)) else ""

    @property
    def _who(self) -> str:
        return f"the server of {self.server.named}"


class _RetriedError(Exception):
    """May go better next time; `wait_s` is what the server asks for."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.why, self.wait_s = why, wait_s


def _trust(server: Server) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(server.authority) if server.authority else None)
    except OSError as problem:
        raise ValueError(f"model.cloud.server.authority: {server.authority} cannot be read ({problem})") from problem
