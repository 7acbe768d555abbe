"""The services with a remote server as the cloud's model, which fails and comes back while both processes run on."""

import re
import subprocess
import sys
from collections.abc import Iterator
from os import environ
from pathlib import Path
from typing import Any

import openai
import pytest

from serving.engines.tokenizer import Tokenizer
from tests.serving.engines.remote.conftest import counting
from tests.serving.engines.remote.fake_server import FakeServer
from tests.support.tiny_tokenizers import byte_level

pytestmark = pytest.mark.slow

KEY = "sk-the-key-of-this-test"


class Process:
    """A service; `said` waits for a line."""

    def __init__(self, name: str, *words: str) -> None:
        self.output = ""
        self.run = subprocess.Popen(
            [sys.executable, "-m", f"serving.{name}", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=environ | {"TANDEM_LLM_KEY": KEY},
        )  # fmt: skip

    def said(self, pattern: str) -> str:
        assert self.run.stdout
        for line in self.run.stdout:
            self.output += line
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"{pattern} was never said:\n{self.output}")

    def ended(self) -> str:
        self.run.terminate()
        return self.output + self.run.communicate(timeout=30)[0]


@pytest.fixture
def fake(tokenizer: Tokenizer) -> Iterator[FakeServer]:
    with FakeServer(byte_level(), counting(50), ends=tokenizer.eos_token_ids, key=KEY) as made:
        yield made


def test_the_services_outlive_a_failure_of_the_remote_server(
    fake: FakeServer, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    words = [
        "+policy=sled", "policy/draft=single_token", "policy/verify=replace", "policy/link_loss=local",
        "model=toy", f"model.device.path={pair[0]}", "model.cloud.path=null", f"outputs={tmp_path}",
        f"+model.cloud.server.base_url={fake.url}", "+model.cloud.server.model=large",
        "+model.cloud.server.retries=0", "+model.cloud.server.cooldown_s=0.2",
        "service.cloud=127.0.0.1:0", "service.health.port=0", "service.endpoint.port=0", "workload.devices=1",
    ]  # fmt: skip
    cloud = Process("cloud", *words)
    try:
        address = cloud.said(r"large at .* listens on (\S+),")
        device = Process("device", *words[:-4], f"service.cloud={address}", *words[-3:])
        try:
            _served(device, fake)
        finally:
            told = device.ended()
    finally:
        told += cloud.ended()
    assert fake.wrong == []
    assert "said 503" in told
    assert KEY not in told


def _served(device: Process, fake: FakeServer) -> None:
    port = device.said(r"answers on http://127.0.0.1:(\d+)/v1")
    device.said(r"(its cloud) at .* is there")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0)

    def ask() -> Any:
        return client.completions.create(model="sled", prompt="where is it?", max_tokens=8, temperature=0)

    first = ask()
    assert first.tandem["origins"] == {"cloud": 8}
    fake.faults.extend([503] * 1000)
    assert set(ask().tandem["origins"]) == {"offline"}
    fake.faults.clear()
    while True:  # until the server is not left alone any more
        again = ask()
        if set(again.tandem["origins"]) == {"cloud"}:
            break
    assert again.choices[0].text == first.choices[0].text
