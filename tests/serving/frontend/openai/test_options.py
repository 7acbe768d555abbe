from typing import Any

import pytest

from serving.frontend.openai.options import EndpointOptions


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"host": ""}, "endpoint.host is empty"),
        ({"port": 65536}, "endpoint.port is 65536"),
        ({"default_temperature": 2.5}, "endpoint.default_temperature is 2.5"),
        ({"max_waiting": -1}, "endpoint.max_waiting is -1; give at least 0"),
        ({"cached_conversations": -1}, "endpoint.cached_conversations is -1"),
        ({"max_body_nbytes": 0}, "endpoint.max_body_nbytes is 0; give at least 1"),
        ({"max_connections": 0}, "endpoint.max_connections is 0"),
        ({"retry_after_s": 0}, "endpoint.retry_after_s is 0"),
        ({"body_timeout_s": float("nan")}, "endpoint.body_timeout_s is nan"),
        ({"stall_timeout_s": -1}, "endpoint.stall_timeout_s is -1"),
    ],
)
def test_values_out_of_range_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EndpointOptions(**fields)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("device.example", False)],
)
def test_the_default_host_is_loopback(host: str, loopback: bool) -> None:
    assert EndpointOptions().is_loopback
    assert EndpointOptions(host=host).is_loopback is loopback


def test_an_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = EndpointOptions(api_key_env="A_KEY")
    assert endpoint.api_key() is None
    monkeypatch.setenv("A_KEY", "")
    with pytest.raises(ValueError, match="A_KEY is set but empty"):
        endpoint.api_key()
    monkeypatch.setenv("A_KEY", " \n")
    with pytest.raises(ValueError, match="A_KEY is set but empty"):
        endpoint.api_key()
    monkeypatch.setenv("A_KEY", "k\n")
    assert endpoint.api_key() == "k"
    assert EndpointOptions(api_key_env="").api_key() is None


@pytest.mark.parametrize("key", ["schl\u00fcssel", "two\nlines"])
def test_a_key_that_many_clients_cannot_send_is_refused(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("A_KEY", key)
    with pytest.raises(ValueError, match="A_KEY is not printable ASCII"):
        EndpointOptions(api_key_env="A_KEY").api_key()
