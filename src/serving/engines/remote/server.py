"""Configuration of an OpenAI-compatible server: URL, model, key, dialect, timeouts and retries."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from serving.transport.security import is_loopback_host, secret_from_environment

DialectName = Literal["auto", "llama_cpp", "vllm", "sglang", "openai"]


@dataclass(frozen=True, kw_only=True)
class RemoteServer:
    """A model at a base URL. Certificates are always checked; redirects and proxies are never used.

    Raises ValueError for a URL that holds credentials or would send text unencrypted, and for options out of range.
    """

    base_url: str
    """With its version: https://HOST/v1."""
    model: str
    """One of the models that the server lists."""
    api_key_env: str = "TANDEM_LLM_KEY"
    """The environment variable with the key; if unset, none is sent."""
    dialect: DialectName = "auto"
    """Which fields beyond OpenAI's are used; auto: by `owned_by` in the server's list of models."""
    tokens_per_request: int = 1
    """Tokens per request; those after the first are used while the text goes on as the server wrote it."""
    concurrency: int = 8
    """Concurrent requests."""
    timeout_s: float = 30.0
    """From sending a request to the end of its response."""
    connect_timeout_s: float = 5.0
    retries: int = 3
    """After the first attempt, if the server is not reached, overloaded (429) or fails (5xx)."""
    backoff_s: float = 0.25
    """A retry waits for a random part of it, which doubles each time up to `backoff_max_s`; or for the server's
    Retry-After if that is longer, up to `retry_after_max_s`.
    """
    backoff_max_s: float = 8.0
    retry_after_max_s: float = 30.0
    cooldown_s: float = 5.0
    """After the last attempt, requests fail at once for so long; on virtual time they wait instead."""
    max_response_nbytes: int = 16 << 20
    ca_certificate: Path | None = None
    """The trusted CA (PEM), instead of the system's."""
    insecure_http: bool = False
    """Allows http:// to another machine; no key is sent there."""
    context_tokens: int | None = None
    """Limit of prompt and answer together; None: the server's, if it tells."""

    def __post_init__(self) -> None:
        self._check_url()
        if not self.model:
            raise ValueError("model.cloud.server.model is empty; give one of the names that the server lists")
        if self.dialect not in get_args(DialectName):
            allowed = ", ".join(get_args(DialectName))
            raise ValueError(f"model.cloud.server.dialect is {self.dialect!r}; it is one of {allowed}")
        for name, low in (("tokens_per_request", 1), ("concurrency", 1), ("retries", 0), ("max_response_nbytes", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"model.cloud.server.{name} is {getattr(self, name)}; give at least {low}")
        for name in ("timeout_s", "connect_timeout_s", "backoff_s", "backoff_max_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"model.cloud.server.{name} is {getattr(self, name)}; it is a time in s, above 0")
        for name in ("retry_after_max_s", "cooldown_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"model.cloud.server.{name} is {getattr(self, name)}; it is a time in s, 0 or more")
        if self.context_tokens is not None and self.context_tokens < 2:
            raise ValueError(f"model.cloud.server.context_tokens is {self.context_tokens}; give at least 2, or null")

    def _check_url(self) -> None:
        at = "model.cloud.server.base_url"
        try:
            url = urlsplit(self.base_url)
            host, _ = url.hostname, url.port
        except ValueError as problem:
            raise ValueError(f"{at} is no URL ({problem}); give one such as http://127.0.0.1:8080/v1") from None
        if "@" in url.netloc:  # checked before any message shows the URL
            raise ValueError(f"{at} holds a user's name or a password; put the key into {self.api_key_env}")
        if url.scheme not in ("http", "https") or not host:
            raise ValueError(f"{at} is {self.base_url!r}; give one such as http://127.0.0.1:8080/v1")
        if url.query or url.fragment:
            raise ValueError(f"{at} has a query or a fragment; give what comes before it")
        if url.scheme == "http" and not self.is_loopback and not self.insecure_http:
            raise ValueError(
                f"{at} is {self.base_url!r}: prompts would cross the network in the clear; use https, or set "
                "model.cloud.server.insecure_http=true"
            )

    @property
    def is_loopback(self) -> bool:
        return is_loopback_host(urlsplit(self.base_url).hostname or "")

    @property
    def api_url(self) -> str:
        return self.base_url.rstrip("/")

    @property
    def root_url(self) -> str:
        """The URL of paths that are not OpenAI's."""
        return self.api_url.removesuffix("/v1")

    @property
    def display_name(self) -> str:
        return f"{self.model} at {self.api_url}"

    def api_key(self) -> str | None:
        """The key in the environment; None if none is sent.

        Raises ValueError for one that is empty, that many clients cannot send, or that would be sent unencrypted.
        """
        key = secret_from_environment(self.api_key_env)
        if key and urlsplit(self.base_url).scheme == "http" and not self.is_loopback:
            raise ValueError(f"{self.api_key_env} would cross the network in the clear; use https, or unset it")
        return key
