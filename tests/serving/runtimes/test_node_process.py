"""A process of a distributed run: it says that it has failed, although its parent says nothing."""

import asyncio
from multiprocessing import Pipe
from threading import Thread
from typing import Any

import pytest

from serving.runtimes import node_process
from serving.runtimes.node_process import NodeProcessError, run_node_process


class Failing(node_process._NodeProcess):
    """Waits for the parent's `stop`, as every process does while it serves, and fails."""

    def __init__(self, config: Any, pipe: Any) -> None:
        self.config, self.pipe = config, pipe

    async def run(self) -> None:
        stop = asyncio.create_task(self._receive("stop"))
        await asyncio.sleep(0)
        try:
            raise RuntimeError("the engine broke")
        finally:
            stop.cancel()


class Config:
    node_names = ("cloud-0",)


def test_a_process_that_fails_tells_its_parent_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, child = Pipe()
    monkeypatch.setattr(node_process, "_NodeProcess", Failing)
    monkeypatch.setattr(node_process.signal, "signal", lambda *_: None)
    Thread(target=_ended, args=(child,), daemon=True).start()
    assert parent.poll(20)
    kind, failure = parent.recv()
    assert (kind, failure.text) == ("failed", "cloud-0: RuntimeError: the engine broke")
    assert failure.frames[-1][:2] == (__name__, __file__)
    error = NodeProcessError(failure)
    assert "Traceback" in error.__notes__[0]
    assert "the engine broke" in error.__notes__[0]


def _ended(pipe: Any) -> None:
    with pytest.raises(SystemExit):
        run_node_process(Config(), pipe)  # type: ignore[arg-type]
