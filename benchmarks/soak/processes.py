"""Starts the processes of the soak, exchanges messages with them, and kills them."""

import asyncio
import multiprocessing as mp
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from benchmarks.soak.hosts import SoakConfig

START_TIMEOUT_S = 120.0
"""How long a process may take to start, or to answer: it imports torch, and the machine may be busy."""


class SoakProcesses:
    """`on_message(word, value)` is called for every message of any of them."""

    def __init__(self, config: SoakConfig, on_message: Callable[[str, Any], None]) -> None:
        self.config, self._on_message, self._context = config, on_message, mp.get_context("spawn")
        self.processes: dict[str, BaseProcess] = {}
        self.pipes: dict[str, Connection] = {}
        self.awaited_replies: dict[tuple[str, str], asyncio.Future[Any]] = {}
        self.start_counts: Counter[str] = Counter()
        self.done: set[str] = set()

    def start(self, name: str, target: Callable[..., None], *args: Any) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(target=target, args=(self.config, *args, there), name=name, daemon=True)
        process.start()
        there.close()
        self.processes[name], self.pipes[name] = process, here
        self.start_counts[name] += 1
        asyncio.get_running_loop().add_reader(here.fileno(), self._receive, name, here)

    def kill(self, name: str) -> None:
        pipe, process = self.pipes.pop(name), self.processes.pop(name)
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        process.kill()
        process.join()
        with suppress(EOFError, OSError):
            while pipe.poll():
                self._on_message(*pipe.recv())  # what it had said before
        pipe.close()

    def send(self, name: str, word: str, value: Any = None) -> None:
        with suppress(OSError):
            self.pipes[name].send((word, value))

    async def wait_for(self, name: str, word: str, timeout_s: float = START_TIMEOUT_S) -> Any:
        future = self.awaited_replies.setdefault((name, word), asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self.awaited_replies.pop((name, word), None)

    def _receive(self, name: str, pipe: Connection) -> None:
        try:
            word, value = pipe.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            if name not in self.done:
                self._died(name)
            return
        if word == "done":
            self.done.add(name)
        future = self.awaited_replies.get((name, word))
        if future and not future.done():
            future.set_result(value)
        self._on_message(word, value)

    def _died(self, name: str) -> None:
        self.processes[name].join(1.0)
        what = f"{name} (exit code {self.processes[name].exitcode})"
        self._on_message("died", what)
        for (process, _), future in self.awaited_replies.items():
            if process == name and not future.done():
                future.set_exception(ConnectionError(f"the process {what} died"))

    async def ask(self, name: str, word: str) -> Any:
        """The answer of a process to a word, which comes under the same word."""
        reply = asyncio.ensure_future(self.wait_for(name, word))
        await asyncio.sleep(0)  # so that the reply is awaited before the process is asked
        self.send(name, word)
        return await reply

    def rss_mb(self, name: str) -> float:
        with open(f"/proc/{self.processes[name].pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def kill_all(self) -> None:
        for pipe in self.pipes.values():
            asyncio.get_running_loop().remove_reader(pipe.fileno())
        for process in self.processes.values():
            process.kill()
            process.join()
