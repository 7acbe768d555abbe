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

from benchmarks.soak.hosts import World


class Crew:
    """`note(word, value)` hears all that they say."""

    def __init__(self, world: World, note: Callable[[str, Any], None]) -> None:
        self.world, self._note, self._context = world, note, mp.get_context("spawn")
        self.processes: dict[str, BaseProcess] = {}
        self.lines: dict[str, Connection] = {}
        self.said: dict[tuple[str, str], asyncio.Future[Any]] = {}
        self.lives: Counter[str] = Counter()
        self.done: set[str] = set()

    def start(self, name: str, play: Callable[..., None], *what: Any) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(target=play, args=(self.world, *what, there), name=name, daemon=True)
        process.start()
        there.close()
        self.processes[name], self.lines[name] = process, here
        self.lives[name] += 1
        asyncio.get_running_loop().add_reader(here.fileno(), self._hear, name, here)

    def kill(self, name: str) -> None:
        line, process = self.lines.pop(name), self.processes.pop(name)
        asyncio.get_running_loop().remove_reader(line.fileno())
        process.kill()
        process.join()
        with suppress(EOFError, OSError):
            while line.poll():
                self._note(*line.recv())  # what it had said before
        line.close()

    def tell(self, name: str, word: str, value: Any = None) -> None:
        with suppress(OSError):
            self.lines[name].send((word, value))

    async def hear(self, name: str, word: str, within_s: float = 60.0) -> Any:
        future = self.said.setdefault((name, word), asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(within_s):
                return await future
        finally:
            self.said.pop((name, word), None)

    def _hear(self, name: str, line: Connection) -> None:
        try:
            word, value = line.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(line.fileno())
            if name not in self.done:
                self.processes[name].join(1.0)
                self._note("died", f"{name} (exit code {self.processes[name].exitcode})")
            return
        if word == "done":
            self.done.add(name)
        future = self.said.get((name, word))
        if future and not future.done():
            future.set_result(value)
        self._note(word, value)

    def rss_mb(self, name: str) -> float:
        with open(f"/proc/{self.processes[name].pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
