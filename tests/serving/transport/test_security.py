"""Tokens and TLS: which clients are accepted, and the errors of the others."""

import logging
from pathlib import Path

import pytest

from serving.transport.connection import Connection, ConnectionTable, ReceivedTensors
from serving.transport.frame import Hello
from serving.transport.limits import Limits, ProtocolError
from serving.transport.security import Security, is_loopback
from serving.transport.server import TransportServer
from serving.transport.stream import Outbox
from tests.serving.transport.transport_peers import FakeSink, dialling, listening, raw, request, run_scenario
from tests.support.tls_certificate import certified

SECRET = "open-sesame-7"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    chain, key = certified(tmp_path)
    return str(chain), str(key)


async def exchange(server: Security, client: Security) -> object:
    """What arrives of a request."""
    cloud = FakeSink()
    async with (
        listening(cloud, security=server) as (_, address),
        dialling(FakeSink(), address, security=client) as client,
    ):
        client.send("device-0", "cloud-0", request())
        return (await cloud.received())[2]


def test_the_right_token_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TOKEN", SECRET)

    async def scenario() -> None:
        assert await exchange(Security(), Security()) == request()

    run_scenario(scenario)


@pytest.mark.parametrize("shown", [None, "another"])
def test_a_missing_or_wrong_token_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shown: str | None
) -> None:
    monkeypatch.setenv("SERVERS", SECRET)
    if shown:
        monkeypatch.setenv("CLIENTS", shown)

    async def scenario() -> None:
        with pytest.raises(ProtocolError, match="set SERVERS") as caught:
            await exchange(Security(token_env="SERVERS"), Security(token_env="CLIENTS"))
        assert caught.value.code == "UNAUTHENTICATED"
        assert SECRET not in caught.value.text

    with caplog.at_level(logging.DEBUG):
        for _ in range(5):  # a race in gRPC may hide the reason (grpc #36066)
            run_scenario(scenario)
    assert SECRET not in caplog.text
    assert "another" not in caplog.text
    assert "trying again" not in caplog.text


@pytest.mark.parametrize("token", ["p\u00e4ssword", "two\nlines"])
def test_a_token_that_is_not_printable_ascii_is_refused(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("TANDEM_TOKEN", token)
    with pytest.raises(ValueError, match="TANDEM_TOKEN is not printable ASCII"):
        Security().check_token_is_protected("127.0.0.1:7070", tls=False)


def test_a_stream_without_a_token_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TOKEN", SECRET)

    async def scenario() -> None:
        cloud = FakeSink()
        async with listening(cloud) as (_, address), raw(address) as call:
            assert (await call.code()).name == "UNAUTHENTICATED"
            assert cloud.quiet

    run_scenario(scenario)


def test_tls_with_a_token_works(monkeypatch: pytest.MonkeyPatch, files: tuple[str, str]) -> None:
    monkeypatch.setenv("TANDEM_TOKEN", SECRET)
    certificate, key = files

    async def scenario() -> None:
        assert await exchange(Security(certificate, key), Security(ca_certificate=certificate)) == request()

    run_scenario(scenario)


def test_a_plaintext_client_cannot_reach_a_tls_server(files: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with (
            listening(FakeSink(), security=Security(*files)) as (_, address),
            dialling(FakeSink(), address) as client,
        ):
            assert client.last_error
            assert client.last_error.code == "UNAVAILABLE"

    run_scenario(scenario)


def test_a_token_without_tls_beyond_loopback_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TOKEN", SECRET)

    async def scenario() -> None:
        with pytest.raises(ValueError, match=r"192\.0\.2\.7:1 is beyond this machine.*TLS") as caught:
            async with dialling(FakeSink(), "192.0.2.7:1"):
                pass
        assert SECRET not in str(caught.value)
        with pytest.raises(ValueError, match="beyond this machine"):
            await TransportServer(("a",), FakeSink(), address="0.0.0.0:0").start()

    run_scenario(scenario)
    assert SECRET not in repr(Security())


def test_incomplete_security_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="certificate is given without private_key"):
        Security(certificate="a")
    with pytest.raises(ValueError, match="token_env is empty"):
        Security(token_env="")
    with pytest.raises(ValueError, match=r"ca_certificate=.*cannot be read: No such file"):
        Security(ca_certificate=str(tmp_path / "no.pem")).channel_credentials()


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:/tmp/x", True),
        ("0.0.0.0:1", False), ("[::]:1", False), ("example.org:1", False), ("127.0.0.1.example.org:1", False),
    ],
)  # fmt: skip
def test_loopback_addresses_are_recognised(address: str, inside: bool) -> None:
    assert is_loopback(address) is inside


def test_without_a_token_only_the_same_address_replaces_a_connection() -> None:
    limits = Limits(hosts=1)

    def connection(peer_host: str, name: str = "device-0") -> Connection:
        return Connection(Hello((name,)), peer_host, Outbox(limits), ReceivedTensors(None, 1))

    table, old = ConnectionTable(limits), connection("ipv4:192.0.2.1")
    table.add(old)
    assert table.replaced_by(connection("ipv4:192.0.2.1"), authenticated=False) == [old]
    assert table.replaced_by(connection("ipv4:192.0.2.2"), authenticated=True) == [old]
    with pytest.raises(ProtocolError, match=r"another address.*token"):
        table.replaced_by(connection("ipv4:192.0.2.2"), authenticated=False)
    with pytest.raises(ProtocolError, match="hosts=1 hosts"):
        table.replaced_by(connection("ipv4:192.0.2.2", "device-1"), authenticated=True)
