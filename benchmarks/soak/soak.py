"""One soak: starts everybody, breaks something every few seconds, and looks what is left in the end."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.soak import hosts
from benchmarks.soak.crew import SoakProcesses
from benchmarks.soak.hosts import LINGER_S, SoakConfig
from benchmarks.soak.strangers import attack
from benchmarks.soak.tally import SoakResults

DEVICES, PER_PROCESS = 16, 4
WARM_UP_S, END_TIMEOUT_S = 20.0, 120.0
MAX_GROWTH_MB = 32.0
"""How much the cloud may hold after the end beyond what it held once it was warm."""


class SoakRun:
    def __init__(self, world: SoakConfig, minutes: float, every_s: float) -> None:
        from proxy import Proxy  # of the tests: `hosts` knows the way

        self.world, self.length_s, self.every_s = world, 60 * minutes, every_s
        self.results, self.faults = SoakResults(), Counter[str]()
        self.processes = SoakProcesses(world, self.results.record)
        crowd = world.devices // PER_PROCESS
        self.groups = {f"devices-{i}": list(range(i, world.devices, crowd)) for i in range(crowd)}
        self.proxy_class, self.proxies, self.address = Proxy, dict[int, Any](), ""
        self.memory_samples: list[tuple[float, float, float]] = []
        self.warm_mb = self.last_mb = 0.0
        self._began = self._cloud_began = 0.0
        self._cloud_is_up = False
        self._random = random.Random(world.seed)
        self._fault_tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> bool:
        try:
            await self._start()
            await self._inject_faults()
            await self._finish()
        finally:
            for task in self._fault_tasks:
                task.cancel()
            self.processes.kill_all()
            for way in self.proxies.values():
                await way.stop()
        print("\n".join(self._report_lines()))
        return not self.results.problems

    async def _start(self) -> None:
        await self._start_cloud("127.0.0.1:0")
        for number in range(self.world.devices):
            self.proxies[number] = await self.proxy_class(self.address).start()
        for name in self.groups:
            self._start_devices(name)
        self._began = time.monotonic()

    async def _start_cloud(self, address: str) -> None:
        self.processes.start("cloud", hosts.cloud, address)
        self.address = await self.processes.wait_for("cloud", "listening")
        self._cloud_began, self.warm_mb, self._cloud_is_up = time.monotonic(), 0.0, True

    def _start_devices(self, name: str) -> None:
        ways = {number: self.proxies[number].address for number in self.groups[name]}
        self.processes.start(name, hosts.devices, ways, self.processes.start_counts[name])

    async def _inject_faults(self) -> None:
        """A fault every few seconds, until the time is over."""
        kinds: list[Callable[[], Any]] = [
            self._cut, self._stall, self._truncate, self._slow, self._kill_devices, self._hostile_clients, self._repeat,
            self._kill_cloud,
        ]  # fmt: skip
        while (elapsed_s := time.monotonic() - self._began) < self.length_s:
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * self.every_s)
            self._sample_memory()
            fault = self._random.choice(kinds if elapsed_s < 0.6 * self.length_s else kinds[:-1])
            self.faults[fault.__name__.strip("_").replace("_", " ")] += 1
            task = asyncio.ensure_future(fault())
            self._fault_tasks.add(task)
            task.add_done_callback(self._fault_finished)

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
        way = self.proxies[self._random.randrange(self.world.devices)]
        getattr(way, do)(*what)
        await asyncio.sleep(self._random.uniform(low_s, high_s))
        way.mend()

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
        if self._cloud_is_up:
            self._cloud_is_up = False
            self.processes.kill("cloud")
            await asyncio.sleep(self._random.uniform(0.1, 6.0))
            await self._start_cloud(self.address)

    async def _kill_devices(self) -> None:
        name = self._random.choice(sorted(self.groups))
        if name in self.processes.processes:
            self.processes.kill(name)
            self.results.device_lost(set(self.groups[name]))
            await asyncio.sleep(self._random.uniform(0.1, 8.0))
            self._start_devices(name)

    # The end.

    async def _finish(self) -> None:
        if self._fault_tasks:
            await asyncio.wait(self._fault_tasks, timeout=60)
        for way in self.proxies.values():
            way.mend()
        done = [asyncio.ensure_future(self.processes.wait_for(name, "done", END_TIMEOUT_S)) for name in self.groups]
        for name in self.groups:
            self.processes.send(name, "stop")
        for outcome in await asyncio.gather(*done, return_exceptions=True):
            if isinstance(outcome, BaseException):
                self.results.problems.append(f"a device process did not end in {END_TIMEOUT_S:g} s")
        self.results.problems += [f"{session} was never answered" for session in self.results.unanswered]
        await self._check_tables_empty()
        self._sample_memory()
        if not self.warm_mb:
            self.results.problems.append(f"the cloud was never up for {WARM_UP_S:g} s: give it more minutes")
        elif self.last_mb - self.warm_mb > MAX_GROWTH_MB:
            self.results.problems.append(f"the cloud grew from {self.warm_mb:.0f} to {self.last_mb:.0f} MB")

    async def _check_tables_empty(self) -> None:
        """What lost devices left behind goes when their leases end."""
        tables: dict[str, int] = {}
        for _ in range(int(2 * LINGER_S) + 5):
            heard = asyncio.ensure_future(self.processes.wait_for("cloud", "tables"))
            await asyncio.sleep(0)
            self.processes.send("cloud", "tables")
            (tables,) = await heard
            errors = tables.pop("errors")
            if not any(tables.values()):
                break
            await asyncio.sleep(1.0)
        else:
            self.results.problems.append(f"left in the cloud: { ({k: n for k, n in tables.items() if n}) }")
        if errors:
            self.results.problems.append(f"{errors} errors in the cloud, printed above")

    def _report_lines(self) -> list[str]:
        tally, curve, lives = self.results, self.memory_samples, self.processes.start_counts
        pair = "fake" if self.world.pair is None else "embedded"
        rows = (("ended", tally.endings), ("tokens", tally.origins), ("faults", self.faults), ("started", lives))
        return [
            f"soak: {DEVICES} devices, {self.length_s / 60:g} minutes, seed {self.world.seed}, the {pair} pair",
            f"  asked     {tally.num_asked}, longest wait {tally.longest_s:.1f} s",
            *(f"  {title:<9} " + ", ".join(f"{n} {name}" for name, n in sorted(row.items())) for title, row in rows),
            *(f"  at {at:4.0f} s: cloud {mb:4.0f} MB, devices up to {more:.0f} MB a process" for at, mb, more in curve),
            f"  cloud     {self.warm_mb:.0f} MB warm, {self.last_mb:.0f} MB in the end (limit +{MAX_GROWTH_MB:g})",
            *(f"  PROBLEM   {problem}" for problem in tally.problems),
            f"  {'FAILED' if tally.problems else 'passed'}",
        ]
