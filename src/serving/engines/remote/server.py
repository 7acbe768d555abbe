"""Where an OpenAI-compatible server is, and how patiently it is asked."""

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

DialectName = Literal["auto", "llama_cpp", "vllm", "sglang", "openai"]


@dataclass(frozen=True, kw_only=True)
class RemoteServer:
    """A model at a base URL. Certificates are always checked, redirects never followed, proxies never asked.

    Raises ValueError for a URL that holds credentials or would carry text in the clear, and for options out of range.
    """

    base_url: str
    """With its version: https://HOST/v1."""
    model: str
    """One of those that the server lists."""
    api_key_env: str = "TANDEM_LLM_KEY"
    """The environment variable with the key; unset: none is sent."""
    dialect: DialectName = "auto"
    """What is asked beyond OpenAI's own fields; auto: by who the server says that it is."""
    tokens_per_request: int = 1
    """Tokens that one question asks for; those behind the first answer the next questions, as long as the text goes on
    as the server wrote it.
    """
    concurrency: int = 8
    """Questions under way at once."""
    timeout_s: float = 30.0
    """Of one answer, from the question on."""
    connect_timeout_s: float = 5.0
    retries: int = 3
    """Beyond the first attempt, where the server was not reached, overloaded (429) or broken (5xx)."""
    backoff_s: float = 0.25
    """A retry waits for a random part of it, which doubles each time up to `backoff_max_s`; as long as the server asks
    (retry-after), but no longer than `retry_after_max_s`.
    """
    backoff_max_s: float = 8.0
    retry_after_max_s: float = 30.0
    cooldown_s: float = 5.0
    """After the last attempt the server is left alone for so long: questions fail at once, or on virtual time wait."""
    max_response_nbytes: int = 16 << 20
    ca_certificate: Path | None = None
    """Whose signature is believed (PEM), in place of the system's authorities."""
    insecure_http: bool = False
    """Lets http:// leave this machine; a key is not sent there."""
    context_tokens: int | None = None
    """Of prompt and answer together; None: as many as the server says, if it does."""

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
        if "@" in url.netloc:  # before the URL is shown
            raise ValueError(f"{at} holds a user's name or a password; put the key into {self.api_key_env}")
        if url.scheme not in ("http", "https") or not host:
            raise ValueError(f"{at} is {self.base_url!r}; give one such as http://127.0.0.1:8080/v1")
        if url.query or url.fragment:
            raise ValueError(f"{at} has a query or a fragment; give what comes before it")
        if url.scheme == "http" and not self.is_loopback and not self.insecure_http:
            raise ValueError(
                f"{at} is {self.base_url!r}: prompts would cross the network in the clear; use https, or say "
                "model.cloud.server.insecure_http=true"
            )

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(self.base_url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def api_url(self) -> str:
        return self.base_url.rstrip("/")

    @property
    def root_url(self) -> str:
        """Where servers keep what is not OpenAI's."""
        return self.api_url.removesuffix("/v1")

    @property
    def display_name(self) -> str:
        return f"{self.model} at {self.api_url}"

    def api_key(self) -> str | None:
        """The key in the environment.

        Raises ValueError for one that is empty, that no header can carry, or that anybody on the way could read.
        """
        if self.api_key_env not in os.environ:
            return None
        key = os.environ[self.api_key_env].strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ValueError(f"{self.api_key_env} is set, but empty or not printable ASCII; give it a key, or unset it")
        if self.api_url.startswith("http:") and not self.is_loopback:
            raise ValueError(f"{self.api_key_env} would cross the network in the clear; use https, or unset it")
        return key
