"""HTTP requests to a server, with bounds on time and bytes, retries, and an error for every unusable response."""

import json
import ssl
import time
from collections.abc import Callable, Mapping
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from serving.engines.remote.errors import RemoteError, one_line, register_secret
from serving.engines.remote.retry import RETRYABLE_STATUSES, CircuitBreaker, retry_after_s, retry_delay_s
from serving.engines.remote.server import RemoteServer

if TYPE_CHECKING:
    from httpx2 import Response

_MAX_EXCERPT_CHARS = 240


class RemoteClient:
    """Thread-safe. `sleep` and `clock` are in seconds; for `wait_for_cooldown` see `CircuitBreaker`. None for `sleep`:
    waits that `stop` ends.

    Raises ValueError for a key that must not be sent, or a CA certificate that cannot be read.
    """

    def __init__(
        self,
        server: RemoteServer,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait_for_cooldown: bool = False,
    ) -> None:
        import httpx2

        from serving.engines.remote.deadline import Deadline, DeadlineTransport

        self._stopped, self._deadline = Event(), Deadline(clock)
        self.server, self._sleep = server, sleep or self._stopped.wait
        self._breaker = CircuitBreaker(server.cooldown_s, wait_for_cooldown, self._sleep, clock)
        self.num_failures, self._lock = 0, Lock()
        headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "tandem"}
        if key := server.api_key():
            register_secret(key)
            headers["authorization"] = f"Bearer {key}"
        self._http = httpx2.Client(
            headers=headers,
            timeout=httpx2.Timeout(server.timeout_s, connect=server.connect_timeout_s),
            transport=DeadlineTransport(
                self._deadline, _ssl_context(server), httpx2.Limits(max_connections=server.concurrency)
            ),
            follow_redirects=False,
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"RemoteClient({self.server.display_name})"

    def stop(self) -> None:
        """Ends waits and forbids further attempts; one under way ends within the server's `timeout_s`."""
        self._stopped.set()

    def close(self) -> None:
        self.stop()
        self._http.close()

    def get(self, url: str) -> dict[str, Any]:
        return self._request("GET", url, None)

    def post(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The response, a JSON object. Raises RemoteError."""
        return self._request("POST", url, body)

    def _request(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        if not self._breaker.allows_request():
            self._count_failure()
            raise RemoteError(
                f"{self._display_name} is left alone for a moment, after: {self._breaker.reason}", transient=True
            )
        for attempt in range(self.server.retries + 1):
            if self._stopped.is_set():
                raise RemoteError(f"{self._display_name} is asked no more, since this process stops", transient=True)
            wait_s = None
            try:
                answer = self._attempt(method, url, body)
            except _RetryableError as problem:
                failed, wait_s = problem.reason, problem.retry_after_s
            except RemoteError as problem:
                self._count_failure()
                if problem.unauthorized:
                    self._breaker.trip(str(problem).removeprefix(self._display_name).lstrip(), unauthorized=True)
                raise
            else:
                self._breaker.record_success()
                return answer
            if attempt < self.server.retries:
                self._sleep(retry_delay_s(self.server, attempt, wait_s))
        self._count_failure()
        self._breaker.trip(failed)
        raise RemoteError(
            f"{self._display_name} {failed}, in {self.server.retries + 1} attempts; is it running, and reachable "
            "from here?",
            transient=True,
        )

    def _count_failure(self) -> None:
        with self._lock:
            self.num_failures += 1

    def _attempt(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        import httpx2

        self._deadline.begin(self.server.timeout_s)
        try:
            with self._http.stream(method, url, json=body) as response:
                raw = self._read(response)
                return self._parse(response, raw)
        except httpx2.TimeoutException as problem:
            raise _RetryableError(f"did not answer in time ({type(problem).__name__})") from None
        except httpx2.DecodingError:
            raise RemoteError(f"{self._display_name} answered in an encoding that was not requested") from None
        except httpx2.TransportError as problem:
            said = one_line(str(problem), _MAX_EXCERPT_CHARS)
            if "certificate" in said.lower():
                raise RemoteError(
                    f"{self._display_name} shows a certificate that is not trusted ({said}); name its CA certificate "
                    "in model.cloud.server.ca_certificate"
                ) from None
            raise _RetryableError(f"was not reached ({type(problem).__name__}: {said})") from None
        except httpx2.HTTPError as problem:
            raise RemoteError(f"{self._display_name} could not be asked ({type(problem).__name__})") from None

    def _read(self, response: "Response") -> bytes:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise RemoteError(f"{self._display_name} answered in an encoding that was not requested")
        found, max_nbytes = bytearray(), self.server.max_response_nbytes
        for chunk in response.iter_bytes():
            found += chunk
            if len(found) > max_nbytes:
                raise RemoteError(
                    f"{self._display_name} answered more than {max_nbytes} bytes "
                    "(model.cloud.server.max_response_nbytes)"
                )
        return bytes(found)

    def _parse(self, response: "Response", raw: bytes) -> dict[str, Any]:
        status = response.status_code
        if status in RETRYABLE_STATUSES:
            raise _RetryableError(f"said {status}{self._error_excerpt(raw)}", retry_after_s(response.headers))
        if 300 <= status < 400:
            raise RemoteError(
                f"{self._display_name} redirects ({status}), which is not followed; give the right "
                "model.cloud.server.base_url",
                status=status,
            )
        if status != 200:
            hint = f"; is the key in {self.server.api_key_env} right?" if status in (401, 403) else ""
            said = f"{self._display_name} refused the question: {status}{self._error_excerpt(raw)}{hint}"
            raise RemoteError(said, status=status)
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError) as problem:
            raise RemoteError(
                f"{self._display_name} broke off, or answered no JSON ({type(problem).__name__})"
            ) from None
        if not isinstance(answer, dict):
            raise RemoteError(f"{self._display_name} answered a {type(answer).__name__} where an object was due")
        if answer.get("error"):
            raise RemoteError(f"{self._display_name} answered 200 with an error{self._error_excerpt(raw)}")
        return answer

    def _error_excerpt(self, raw: bytes) -> str:
        """The server's error message, as far as it may be shown."""
        text = raw.decode("utf-8", "replace")
        try:
            error = json.loads(text)["error"]
            text = error if isinstance(error, str) else str(error["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return f" ({said})" if (said := one_line(text, _MAX_EXCERPT_CHARS)) else ""

    @property
    def _display_name(self) -> str:
        return f"the server of {self.server.display_name}"


class _RetryableError(Exception):
    """A retry may succeed; `retry_after_s` is the server's request."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.retry_after_s = reason, retry_after_s


def _ssl_context(server: RemoteServer) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(server.ca_certificate) if server.ca_certificate else None)
    except OSError as problem:
        raise ValueError(
            f"model.cloud.server.ca_certificate: {server.ca_certificate} cannot be read ({problem})"
        ) from problem
