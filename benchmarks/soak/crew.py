"""The processes of the soak: started, heard, killed."""

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


class SoakProcesses:
    """`note(word, value)` hears all that they say."""

    def __init__(self, world: SoakConfig, on_message: Callable[[str, Any], None]) -> None:
        self.world, self._on_message, self._context = world, on_message, mp.get_context("spawn")
        self.processes: dict[str, BaseProcess] = {}
        self.pipes: dict[str, Connection] = {}
        self.awaited_replies: dict[tuple[str, str], asyncio.Future[Any]] = {}
        self.start_counts: Counter[str] = Counter()
        self.done: set[str] = set()

    def start(self, name: str, target: Callable[..., None], *args: Any) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(target=target, args=(self.world, *args, there), name=name, daemon=True)
        process.start()
        there.close()
        self.processes[name], self.pipes[name] = process, here
        self.start_counts[name] += 1
        asyncio.get_running_loop().add_reader(here.fileno(), self._receive, name, here)

    def kill(self, name: str) -> None:
        line, process = self.pipes.pop(name), self.processes.pop(name)
        asyncio.get_running_loop().remove_reader(line.fileno())
        process.kill()
        process.join()
        with suppress(EOFError, OSError):
            while line.poll():
                self._on_message(*line.recv())  # what it had said before
        line.close()

    def send(self, name: str, word: str, value: Any = None) -> None:
        with suppress(OSError):
            self.pipes[name].send((word, value))

    async def wait_for(self, name: str, word: str, timeout_s: float = 60.0) -> Any:
        future = self.awaited_replies.setdefault((name, word), asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self.awaited_replies.pop((name, word), None)

    def _receive(self, name: str, line: Connection) -> None:
        try:
            word, value = line.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(line.fileno())
            if name not in self.done:
                self.processes[name].join(1.0)
                self._on_message("died", f"{name} (exit code {self.processes[name].exitcode})")
            return
        if word == "done":
            self.done.add(name)
        future = self.awaited_replies.get((name, word))
        if future and not future.done():
            future.set_result(value)
        self._on_message(word, value)

    def rss_mb(self, name: str) -> float:
        with open(f"/proc/{self.processes[name].pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
