"""Options of a remote server, and the pauses of its client."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from serving.engines.remote.client import RemoteClient
from serving.engines.remote.retry import retry_after_s, retry_delay_s
from serving.engines.remote.server import RemoteServer

KEY = "sk-the-key-of-this-test"


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"base_url": "ftp://h/v1"}, "give one such as"),
        ({"base_url": "http:///v1"}, "give one such as"),
        ({"base_url": "http://h:99999/v1"}, "is no URL"),
        ({"base_url": "https://me:pass@h/v1"}, "holds a user's name or a password"),
        ({"base_url": "https://h/v1?key=abc"}, "a query or a fragment"),
        ({"base_url": "http://10.0.0.1/v1"}, "in the clear"),
        ({"model": ""}, "model is empty"),
        ({"dialect": "klingon"}, "one of auto, llama_cpp"),
        ({"tokens_per_request": 0}, "at least 1"),
        ({"retries": -1}, "at least 0"),
        ({"timeout_s": 0.0}, "above 0"),
        ({"timeout_s": float("inf")}, "above 0"),
        ({"cooldown_s": -1.0}, "0 or more"),
        ({"context_tokens": 1}, "at least 2"),
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match) as told:
        RemoteServer(**{"base_url": "http://127.0.0.1:1/v1", "model": "m", **wrong})
    assert "pass@" not in str(told.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.8.8"])
def test_loopback_needs_no_tls(host: str) -> None:
    found = RemoteServer(base_url=f"http://{host}:8080/v1/", model="m")
    assert (found.api_url, found.root_url) == (f"http://{host}:8080/v1", f"http://{host}:8080")


@pytest.mark.parametrize("scheme", ["http", "HTTP"])
def test_http_to_elsewhere_is_a_choice_and_carries_no_key(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.delenv("TANDEM_LLM_KEY", raising=False)
    afar = RemoteServer(base_url=f"{scheme}://10.0.0.1/v1", model="m", insecure_http=True)
    assert afar.api_key() is None
    monkeypatch.setenv("TANDEM_LLM_KEY", KEY)
    with pytest.raises(ValueError, match="in the clear") as told:
        RemoteClient(afar)
    assert KEY not in str(told.value)


@pytest.mark.parametrize("bad", ["", "  ", "schl\u00fcssel", "two\nlines"])
def test_a_key_that_many_clients_cannot_send_is_refused(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("TANDEM_LLM_KEY", bad)
    with pytest.raises(ValueError, match=r"TANDEM_LLM_KEY is (set but empty|not printable ASCII)"):
        RemoteServer(base_url="http://127.0.0.1/v1", model="m").api_key()


def test_the_key_is_in_no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_LLM_KEY", KEY)
    options = RemoteServer(base_url="http://127.0.0.1/v1", model="m")
    client = RemoteClient(options)
    assert KEY not in f"{options!r} {options} {client!r} {client} {options.display_name}"
    client.close()


def test_a_missing_ca_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ca_certificate"):
        RemoteClient(RemoteServer(base_url="https://h/v1", model="m", ca_certificate=tmp_path / "none.pem"))


def test_retry_pauses_grow_to_a_bound_with_full_jitter() -> None:
    options = RemoteServer(base_url="http://127.0.0.1/v1", model="m", backoff_s=0.5, backoff_max_s=3.0)
    assert [retry_delay_s(options, n, None, lambda: 1.0) for n in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [retry_delay_s(options, n, None, lambda: 0.0) for n in range(5)] == [0.0] * 5
    assert retry_delay_s(options, 0, 7.0, lambda: 0.5) == 7.0
    assert retry_delay_s(options, 0, 1e9, lambda: 0.5) == options.retry_after_max_s


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("nan", None), ("inf", None), ("soon", None), ("", None),
        ("Sun, 22 Nov 2026 12:00:10 GMT", 10.0), ("Sun, 22 Nov 2026 11:00:00 GMT", 0.0),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
    ],
)  # fmt: skip
def test_retry_after_accepts_seconds_and_dates(said: str, seconds: float | None) -> None:
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert retry_after_s({"retry-after": said}, now) == seconds
