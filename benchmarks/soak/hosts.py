"""The processes of the soak: a cloud, and devices whose users never rest. They talk to their parent over pipes.

A child says (word, value): `listening`, `asked`, `ended`, `tables`, `done`; it hears `tables`, `repeat` and `stop`.
"""

import asyncio
import faulthandler
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from serving.deployment.topology import Cast
from serving.drivers.clock import Wall
from serving.drivers.real_time import Live
from serving.drivers.simulator import Chip
from serving.messages import Begin, Call, Cancelled, Deliver, Message
from serving.policy.slots.link_loss import LinkLoss
from serving.runtimes.host import Host
from serving.transport.limits import Limits
from serving.transport.security import Security

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
logging.getLogger("serving").setLevel(logging.ERROR)  # links break all the time here
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "serving"))  # the fake pair, and the proxy

LIMITS = Limits(keepalive_s=1.0, keepalive_timeout_s=1.0, connect_s=1.0, backoff_s=0.1, backoff_max_s=1.0, linger_s=5.0)
LINGER_S, TIMEOUT_S = 5.0, 5.0
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 24, 12, 24
THINK_S = 1.0


@dataclass(frozen=True)
class World:
    """What every process must know; without a pair the fake one answers."""

    seed: int
    devices: int
    pair: tuple[Path, Path] | None
    """The folders of the device's and of the cloud's model."""

    def cast(self, action: Any = "wait") -> Cast:
        from benchmarks.simulation import testbed

        setup = testbed(self.devices, 1)
        setup = replace(setup, policy=replace(setup.policy, link_loss=LinkLoss(action)))
        if self.pair is None:
            return Cast(setup, 8, TIMEOUT_S, LINGER_S)
        from serving.deployment.model_loading import depth

        device, cloud = (
            replace(m, path=p) for m, p in zip((setup.pair.device, setup.pair.cloud), self.pair, strict=True)
        )
        setup = replace(setup, pair=replace(setup.pair, device=device, cloud=cloud))
        return Cast(setup, depth(cloud), TIMEOUT_S, LINGER_S)

    def chip(self, cast: Cast, name: str, blobs: Any) -> tuple[Chip, Any]:
        """A node's chip, and the engine on it."""
        if self.pair is None:
            from fake_pair import FakePair

            return Chip(pair := FakePair()), pair
        from serving.deployment.model_loading import open_side
        from serving.deployment.wiring import Chips

        side = "device" if name in cast.fleets else "cloud"
        models = open_side(cast.setup, side, blobs)
        return Chips(cast, models, ())(name), getattr(models, side)

    def prompt(self, number: int) -> tuple[int, ...]:
        r = random.Random(f"{self.seed} {number}")
        return tuple(r.randrange(3, 500) for _ in range(PROMPT_TOKENS))


class Place:
    """One node on a host of its own."""

    def __init__(self, world: World, name: str, action: str) -> None:
        from serving.engines.torch.tensor_store import Blobs

        self.name, self.cast, self.blobs, self.errors = name, world.cast(action), Blobs(), 0
        self.host = Host(self.cast, (name,), self.blobs, Security(), LIMITS, "soak")
        self.live = Live(Wall(), pace="hardware", told=self._told)
        self.node: Any = self.cast.node(name)
        chip, self.engine = world.chip(self.cast, name, self.blobs)
        self.live.add(name, self.node, chip)

    def _told(self, problem: Exception) -> None:
        self.errors += 1
        print(f"{self.name}: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)

    def tables(self) -> dict[str, int]:
        caches = getattr(self.engine, "caches", None)
        found = {"caches": len(self.engine.cache if caches is None else caches), "blobs": len(self.blobs)}
        if self.name in self.cast.fleets:
            return found | {"parked": len(self.node.parked), "waiting": len(self.node.waiting)}
        names = ("owners", "queue", "running", "text", "held", "sent", "leases", "suspects")
        return found | {
            **{name: len(getattr(self.node, name)) for name in names},
            "newest": len(self.node.newest.keys() - self.node.released.keys()),
            "lengths": len(self.node.ledger.lengths),
        }


class Child:
    """A process: hears its parent on the event loop, ends with it."""

    def __init__(self, line: Connection) -> None:
        self.line, self.stop = line, asyncio.Event()
        self.places: list[Place] = []
        self.repeat_until_s = 0.0
        asyncio.get_running_loop().add_reader(line.fileno(), self._hear)

    def say(self, word: str, value: Any = None) -> None:
        self.line.send((word, value))

    def _hear(self) -> None:
        try:
            word, value = self.line.recv()
        except EOFError:
            os._exit(1)  # the parent is gone
        if word == "tables":
            self.say("tables", [place.tables() | {"errors": place.errors} for place in self.places])
        elif word == "repeat":
            self.repeat_until_s = time.monotonic() + value
        else:
            self.stop.set()


def cloud(world: World, address: str, line: Connection) -> None:
    _ignore_ctrl_c()
    asyncio.run(_cloud(world, address, line))


async def _cloud(world: World, address: str, line: Connection) -> None:
    child = Child(line)
    place = Place(world, "cloud-0", "wait")
    child.places.append(place)
    child.say("listening", await place.host.listen(address))
    place.host.play(place.live)
    running = asyncio.create_task(place.live.run(child.stop.is_set))
    await child.stop.wait()
    place.live.stir()
    await running
    await place.host.close(0.5)
    place.live.close()
    child.say("done")


def devices(world: World, ways: Mapping[int, str], life: int, line: Connection) -> None:
    """Devices of one process; `ways` says where each of them dials, `life` how often the process was started."""
    _ignore_ctrl_c()
    asyncio.run(_devices(world, ways, life, line))


async def _devices(world: World, ways: Mapping[int, str], life: int, line: Connection) -> None:
    child = Child(line)
    users = [User(world, number, way, life, child) for number, way in ways.items()]
    await asyncio.gather(*(user.live_on() for user in users))
    child.say("done")


class User:
    """One device and the person at it, who asks, waits for the answer, thinks, and asks again; sometimes a second
    question of the same conversation, sometimes without waiting for the end.
    """

    def __init__(self, world: World, number: int, way: str, life: int, child: Child) -> None:
        self.world, self.number, self.way, self.life, self.child = world, number, way, life, child
        self.place = Place(world, f"device-{number}", "local" if number % 2 else "wait")
        child.places.append(self.place)
        self.place.live.on_deliver(self._delivered)
        self.answer: list[Deliver] = []
        self.over = asyncio.Event()
        self._expected = ""
        self._r = random.Random(f"user {world.seed} {number} {life}")

    async def live_on(self) -> None:
        place = self.place
        await place.host.dial({"cloud-0": self.way})
        place.host.play(place.live)
        place.live.carry("cloud-0", self._repeating(place.live._carriers["cloud-0"]))
        running = asyncio.create_task(place.live.run(lambda: False))
        turn = 0
        while not self.child.stop.is_set():
            await self._question(f"d{self.number}.{self.life}.{turn}")
            turn += 1
            await asyncio.sleep(self._r.uniform(0, 2 * THINK_S))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await place.host.close(0.5)
        place.live.close()

    async def _question(self, session: str) -> None:
        r, number = self._r, self._r.randrange(PROMPTS)
        prompt, keep = self.world.prompt(number), r.random() < 0.1
        text = await self._ask(Call(session, prompt, NEW_TOKENS, keep=keep), session, number)
        if keep:
            await self._ask(Call(session, (*prompt, *text, 7, 11), NEW_TOKENS, keep=True), f"{session}/2", None)
            self._post(Cancelled(session))  # forgets the conversation

    async def _ask(self, call: Call, label: str, number: int | None) -> tuple[int, ...]:
        self.answer, self._expected = [], call.session
        self.over.clear()
        self.child.say("asked", (label, self.number))
        began = time.monotonic()
        self._post(Begin(call))
        if self._r.random() < 0.05:
            await asyncio.sleep(self._r.uniform(0, 0.5))
            self._post(Cancelled(call.session))
        await self.over.wait()
        text = tuple(token for d in self.answer for token in d.tokens)
        origins = Counter(origin for d in self.answer for origin in d.origins)
        self.child.say("ended", (label, number, self.answer[-1].ending, text, origins, time.monotonic() - began))
        return text

    def _post(self, event: Begin | Cancelled) -> None:
        self.place.live.post(self.place.live.now(), self.place.name, event)

    def _delivered(self, deliver: Deliver, now: float) -> None:  # noqa: ARG002
        if deliver.session != self._expected or self.over.is_set():
            self.child.say("twice", deliver.session)
            return
        self.answer.append(deliver)
        if deliver.ending:
            self.over.set()

    def _repeating(self, carry: Any) -> Any:
        def say(sender: str, to: str, message: Message) -> None:
            for _ in range(2 if time.monotonic() < self.child.repeat_until_s else 1):
                carry(sender, to, message)

        return say


def _ignore_ctrl_c() -> None:
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal: the parent ends it
