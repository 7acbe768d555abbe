"""One soak: starts all processes, breaks something every few seconds, and counts what is left in the end."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.soak import hosts
from benchmarks.soak.hostile_clients import attack
from benchmarks.soak.hosts import LINGER_S, SoakConfig
from benchmarks.soak.processes import SoakProcesses
from benchmarks.soak.progress import shown_part
from benchmarks.soak.results import SoakResults
from pipeline.artifacts.progress_display import display_for

DEVICES, PER_PROCESS = 16, 4
WARM_UP_S, END_TIMEOUT_S = 20.0, 120.0
MIN_LENGTH_FOR_GROWTH_S = 180.0
"""From this length on the last 40 %, without a kill of the cloud, are long enough for it to be warm and to grow."""
EMPTYING_TIMEOUT_S = int(2 * LINGER_S) + 5
"""How long the cloud may take to forget what is over: leases and tensors of lost devices linger."""
MAX_GROWTH_MB = 32.0
"""How much the cloud may hold after the end beyond what it held once it was warm."""


class SoakRun:
    def __init__(self, config: SoakConfig, length_s: float, every_s: float) -> None:
        from tests.support.tcp_proxy import Proxy

        self.config, self.length_s, self.every_s = config, length_s, every_s
        self.display = display_for()
        self.num_transport_sessions = 0
        """Sessions whose owner the cloud's transport remembers."""
        self.results, self.faults = SoakResults(), Counter[str]()
        self.processes = SoakProcesses(config, self.results.record)
        num_groups = config.devices // PER_PROCESS
        self.groups = {f"devices-{i}": list(range(i, config.devices, num_groups)) for i in range(num_groups)}
        self.proxy_class, self.proxies, self.address = Proxy, dict[int, Any](), ""
        self.memory_samples: list[tuple[float, float, float]] = []
        self.warm_mb = self.last_mb = 0.0
        self._began = self._cloud_began = 0.0
        self._down: set[str] = set()
        """Processes that were killed and do not work again yet."""
        self._tasks_at_start = self._tasks_now = 0
        """Of the cloud's event loop: before a device has called, and now."""
        self._random = random.Random(config.seed)
        self._fault_tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> bool:
        try:
            async with shown_part(self.display, "start", self._start_progress):
                await self._start()
            async with shown_part(self.display, "faults", self._fault_progress):
                await self._inject_faults()
            async with shown_part(self.display, "answers", self._answer_progress):
                await self._finish()
            async with shown_part(self.display, "leftovers", self._emptying_progress):
                await self._end_cloud()
            self._find_problems()
        finally:
            for task in self._fault_tasks:
                task.cancel()
            self.processes.kill_all()
            for proxy in self.proxies.values():
                await proxy.stop()
        print("\n".join(self._report_lines()))
        return not self.results.problems

    # How far it is.

    def _start_progress(self, elapsed_s: float) -> tuple[int, int, str]:  # noqa: ARG002
        return len(self.processes.processes), 1 + len(self.groups), "processes started"

    def _fault_progress(self, elapsed_s: float) -> tuple[int, int, str]:
        done_s = min(elapsed_s, self.length_s)
        return int(done_s), int(self.length_s), f"seconds; {self._so_far}, {sum(self.faults.values())} faults"

    def _answer_progress(self, elapsed_s: float) -> tuple[int, int, str]:
        results, running = self.results, ", ".join(sorted(self.groups.keys() - self.processes.done))
        note = f"{self._so_far}; {running} not over yet; {elapsed_s:.0f} of at most {END_TIMEOUT_S:g} s"
        return results.num_asked - len(results.unanswered), results.num_asked, note

    def _emptying_progress(self, elapsed_s: float) -> tuple[int, int, str]:
        return int(elapsed_s), EMPTYING_TIMEOUT_S, f"seconds at most; {self._so_far}"

    @property
    def _so_far(self) -> str:
        results, problems = self.results, self.results.problems
        found = f"{len(problems)} problems" + (f", the last: {problems[-1]}" if problems else "")
        down = f", {' and '.join(sorted(self._down))} down" if self._down else ""
        return f"{results.num_answered} of {results.num_asked} requests answered{down}, {found}"

    # From the start to the end.

    async def _start(self) -> None:
        await self._start_cloud("127.0.0.1:0")
        await self._cloud_tables()  # if the cloud cannot say it, that is known now and not in the end
        self._tasks_at_start = self._tasks_now
        for number in range(self.config.devices):
            self.proxies[number] = await self.proxy_class(self.address).start()
        for name in self.groups:
            self._start_devices(name)
        await asyncio.gather(*(self.processes.wait_for(name, "asked") for name in self.groups))
        self._began = time.monotonic()

    async def _start_cloud(self, address: str) -> None:
        self.processes.start("cloud", hosts.cloud, address)
        self.address = await self.processes.wait_for("cloud", "listening")
        self._cloud_began, self.warm_mb = time.monotonic(), 0.0

    def _start_devices(self, name: str) -> None:
        ways = {number: self.proxies[number].address for number in self.groups[name]}
        self.processes.start(name, hosts.devices, ways, self.processes.start_counts[name])

    async def _inject_faults(self) -> None:
        """A fault every few seconds, until the time is over."""
        while (elapsed_s := time.monotonic() - self._began) < self.length_s:
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * self.every_s)
            self._sample_memory()
            fault = self._random.choice(self._possible_faults(elapsed_s))
            self.faults[fault.__name__.strip("_").replace("_", " ")] += 1
            task = asyncio.ensure_future(fault())
            self._fault_tasks.add(task)
            task.add_done_callback(self._fault_finished)

    def _possible_faults(self, elapsed_s: float) -> list[Callable[[], Any]]:
        """What may break now. On a busy machine a start takes long: the cloud and one process of devices are down at
        a time, so that there is work that the faults disturb.
        """
        kinds = [self._cut, self._stall, self._truncate, self._slow, self._hostile_clients, self._repeat]
        if not self._down & self.groups.keys():
            kinds.append(self._kill_devices)
        if "cloud" not in self._down and elapsed_s < 0.6 * self.length_s:
            kinds.append(self._kill_cloud)
        return kinds

    def _fault_finished(self, task: asyncio.Task[None]) -> None:
        self._fault_tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            self.results.problems.append(f"a fault failed: {problem!r}")

    def _sample_memory(self) -> None:
        now = time.monotonic()
        if "cloud" not in self.processes.processes:
            return
        self.last_mb = self.processes.rss_mb("cloud")
        if not self.warm_mb and now - self._cloud_began > WARM_UP_S:
            self.warm_mb = self.last_mb
        devices = [self.processes.rss_mb(name) for name in self.groups if name in self.processes.processes]
        if not self.memory_samples or now - self._began > self.memory_samples[-1][0] + self.length_s / 10:
            self.memory_samples.append((now - self._began, self.last_mb, max(devices, default=0.0)))

    # What breaks.

    async def _disturb_proxy(self, do: str, low_s: float, high_s: float, *what: Any) -> None:
        proxy = self.proxies[self._random.randrange(self.config.devices)]
        getattr(proxy, do)(*what)
        await asyncio.sleep(self._random.uniform(low_s, high_s))
        proxy.mend()

    async def _cut(self) -> None:
        await self._disturb_proxy("cut", 0.1, 8.0)

    async def _stall(self) -> None:
        await self._disturb_proxy("stall", 0.5, 8.0)

    async def _truncate(self) -> None:
        await self._disturb_proxy("truncate", 2.0, 4.0, self._random.randrange(1, 500))

    async def _slow(self) -> None:
        await self._disturb_proxy("slow", 2.0, 5.0, self._random.uniform(0.05, 0.5))

    async def _repeat(self) -> None:
        for name in self.groups:
            if name in self.processes.pipes:
                self.processes.send(name, "repeat", self._random.uniform(1.0, 4.0))

    async def _hostile_clients(self) -> None:
        await attack(self.address, self._random)

    async def _kill_cloud(self) -> None:
        self._kill("cloud")
        await asyncio.sleep(self._random.uniform(0.1, 6.0))
        await self._start_cloud(self.address)
        self._down.discard("cloud")

    async def _kill_devices(self) -> None:
        name = self._random.choice(sorted(self.groups))
        self._kill(name)
        self.results.device_lost(set(self.groups[name]))
        await asyncio.sleep(self._random.uniform(0.1, 8.0))
        self._start_devices(name)
        await self.processes.wait_for(name, "asked")
        self._down.discard(name)

    def _kill(self, name: str) -> None:
        self._down.add(name)
        self.processes.kill(name)

    # The end.

    async def _finish(self) -> None:
        """No more faults and no more questions; devices answer what they were asked, and end."""
        if self._fault_tasks:
            _, late = await asyncio.wait(self._fault_tasks, timeout=END_TIMEOUT_S)
            self.results.problems += [f"a fault was not over in {END_TIMEOUT_S:g} s"] * len(late)
        for proxy in self.proxies.values():
            proxy.mend()
        await asyncio.gather(*(self._end_devices(name) for name in self.groups))

    async def _end_devices(self, name: str) -> None:
        if name not in self.processes.pipes:
            self.results.problems.append(f"the process {name} does not run")
            return
        await self._stop(name)

    async def _stop(self, name: str) -> None:
        done = asyncio.ensure_future(self.processes.wait_for(name, "done", END_TIMEOUT_S))
        await asyncio.sleep(0)
        self.processes.send(name, "stop")
        try:
            await done
        except TimeoutError:
            self.results.problems.append(f"the process {name} did not end in {END_TIMEOUT_S:g} s")
        except ConnectionError:
            pass  # it died: the results say so

    async def _end_cloud(self) -> None:
        try:
            held = await self._wait_until_empty()
        except (ConnectionError, TimeoutError) as problem:
            self.results.problems.append(f"the cloud does not say what it holds: {problem!r}")
            return
        self.results.add_leftovers("cloud-0", held)
        self._sample_memory()
        await self._stop("cloud")

    async def _wait_until_empty(self) -> dict[str, int]:
        """What the cloud holds when nothing more goes; what lost devices left goes when their leases end."""
        until_s = time.monotonic() + EMPTYING_TIMEOUT_S
        while any((held := await self._cloud_tables()).values()) and time.monotonic() < until_s:
            await asyncio.sleep(0.5)
        return held

    async def _cloud_tables(self) -> dict[str, int]:
        (tables,) = await self.processes.ask("cloud", "tables")
        self.num_transport_sessions, self._tasks_now = tables["transport sessions"], tables["tasks"]
        return tables["held"] | {"tasks": max(0, self._tasks_now - self._tasks_at_start)}

    def _find_problems(self) -> None:
        problems = self.results.problems
        self.results.close()
        if self.warm_mb and self.last_mb - self.warm_mb > MAX_GROWTH_MB:
            problems.append(f"the cloud grew from {self.warm_mb:.0f} to {self.last_mb:.0f} MB")
        if not self.warm_mb and self.length_s >= MIN_LENGTH_FOR_GROWTH_S:
            problems.append(f"the cloud was never up for {WARM_UP_S:g} s")

    def _report_lines(self) -> list[str]:
        results = self.results
        pair = "fake pair" if self.config.pair is None else "pair " + " and ".join(map(str, self.config.pair))
        rows = (
            ("ended", results.endings),
            ("tokens", results.origins),
            ("faults", self.faults),
            ("started", self.processes.start_counts),
        )
        return [
            f"soak: {DEVICES} devices, {self.length_s:g} s, seed {self.config.seed}, the {pair}",
            f"  asked     {results.num_asked}, longest wait {results.longest_s:.1f} s",
            f"  answered  {results.num_answered}, unanswered {len(results.unanswered)}",
            f"  left      {sum(results.left.values())} in tables, caches, queues, stores and streams; beside them the "
            f"transport remembers the owners of {self.num_transport_sessions} sessions, which is bounded",
            *(f"  {title:<9} " + ", ".join(f"{n} {name}" for name, n in sorted(row.items())) for title, row in rows),
            *(
                f"  at {at:4.0f} s: cloud {cloud_mb:4.0f} MB, devices up to {device_mb:.0f} MB a process"
                for at, cloud_mb, device_mb in self.memory_samples
            ),
            f"  cloud     {self._memory}",
            *(f"  PROBLEM   {problem}" for problem in results.problems),
            f"  {'FAILED' if results.problems else 'passed'}",
        ]

    @property
    def _memory(self) -> str:
        if not self.warm_mb:
            return f"{self.last_mb:.0f} MB in the end; never up for {WARM_UP_S:g} s, so that growth is not measured"
        return f"{self.warm_mb:.0f} MB warm, {self.last_mb:.0f} MB in the end (limit +{MAX_GROWTH_MB:g})"
