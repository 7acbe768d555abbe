"""A pair of tiny Llamas with a real byte-level tokenizer, and the large one as the text source of fake servers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.engines.remote.client import RemoteClient
from serving.engines.remote.server import RemoteServer
from serving.engines.tokenizer import Tokenizer
from tests.support.tiny_models import save_byte_level


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clients are closed when their test is over; a program's end with it."""
    opened: list[RemoteClient] = []
    begin = RemoteClient.__init__

    def begun(self: RemoteClient, *args: Any, **how: Any) -> None:
        begin(self, *args, **how)
        opened.append(self)

    monkeypatch.setattr(RemoteClient, "__init__", begun)
    yield
    for client in opened:
        client.close()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(device, cloud)."""
    root = tmp_path_factory.mktemp("remote")
    return save_byte_level(root / "device", 2, 0), save_byte_level(root / "cloud", 3, 1)


@pytest.fixture(scope="session")
def tokenizer(pair: tuple[Path, Path]) -> Tokenizer:
    return Tokenizer(pair[0])


@pytest.fixture(scope="session")
def brain(pair: tuple[Path, Path]) -> Callable[[tuple[int, ...]], int]:
    """The greedy next token of the pair's large model, by `transformers` alone."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair[1], dtype=torch.float32).eval()
    known: dict[tuple[int, ...], int] = {}

    def next_token(prefix: tuple[int, ...]) -> int:
        if prefix not in known:
            with torch.inference_mode():
                known[prefix] = int(model(torch.tensor([prefix])).logits[0, -1].argmax())
        return known[prefix]

    return next_token


def counting(n: int) -> Callable[[tuple[int, ...]], int]:
    """A brain without a model: printable tokens that depend on the whole prefix."""

    def next_token(prefix: tuple[int, ...]) -> int:
        return 40 + (sum((i + 1) * t for i, t in enumerate(prefix)) * 7919 + len(prefix)) % n

    return next_token


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now_s, self.slept = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def server(url: str, **how: Any) -> RemoteServer:
    """Impatient, so that tests need not wait."""
    fast = {"model": "large", "timeout_s": 5.0, "backoff_s": 1e-4, "backoff_max_s": 1e-3, "cooldown_s": 0.0}
    return RemoteServer(**{"base_url": url, **fast, **how})
