"""The processes of the soak: a cloud, and devices whose users never rest. They talk to their parent over pipes.

A child says (word, value): `listening`, `asked`, `ended`, `twice`, `error`, `tables`, `left`, `done`; it hears
`tables`, `repeat` and `stop`.
"""

import asyncio
import faulthandler
import logging
import os
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from serving.deployment.topology import Topology
from serving.drivers.clock import WallClock
from serving.drivers.real_time import RealTimeDriver
from serving.drivers.simulator import ComputeResource
from serving.messages import EmitTokens, GenerationRequest, Message, RequestArrived, SessionCancelled
from serving.policy.slots.link_loss import LinkLoss
from serving.runtimes.host import NodeHost
from serving.transport.limits import Limits
from serving.transport.security import Security

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
logging.getLogger("serving").setLevel(logging.ERROR)  # links break all the time here

LIMITS = Limits(
    keepalive_s=1.0, keepalive_timeout_s=1.0, connect_timeout_s=1.0, backoff_s=0.1, backoff_max_s=1.0, linger_s=5.0
)
LINGER_S, TIMEOUT_S = 5.0, 5.0
FORGET_TIMEOUT_S = 10.0
"""How long a device may take to forget what is over."""
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 24, 12, 24
THINK_S = 1.0


@dataclass(frozen=True)
class SoakConfig:
    """What every process must know; without a pair the fake one answers."""

    seed: int
    devices: int
    pair: tuple[Path, Path] | None
    """The folders of the device's and of the cloud's model."""

    def topology(self, action: Any = "wait") -> Topology:
        from benchmarks.simulation import testbed

        setup = testbed(self.devices, 1)
        setup = replace(setup, policy=replace(setup.policy, link_loss=LinkLoss(action)))
        if self.pair is None:
            return Topology(setup, 8, TIMEOUT_S, LINGER_S)
        from serving.deployment.model_loading import num_layers

        device, cloud = (
            replace(m, path=p) for m, p in zip((setup.pair.device, setup.pair.cloud), self.pair, strict=True)
        )
        setup = replace(setup, pair=replace(setup.pair, device=device, cloud=cloud))
        return Topology(setup, num_layers(cloud), TIMEOUT_S, LINGER_S)

    def open_chip(self, topology: Topology, name: str, tensors: Any) -> tuple[ComputeResource, Any]:
        """A node's chip, and the engine on it."""
        if self.pair is None:
            from tests.support.fake_pair import FakePair

            return ComputeResource(pair := FakePair()), pair
        from serving.deployment.model_loading import load_side
        from serving.deployment.wiring import ChipFactory

        side = "device" if name in topology.device_fleets else "cloud"
        models = load_side(topology.setup, side, tensors)
        return ChipFactory(topology, models, ())(name), getattr(models, side)

    def prompt(self, number: int) -> tuple[int, ...]:
        r = random.Random(f"{self.seed} {number}")
        return tuple(r.randrange(3, 500) for _ in range(PROMPT_TOKENS))


class SoakNode:
    """One node on a host of its own."""

    def __init__(self, config: SoakConfig, name: str, action: str, child: "SoakChild") -> None:
        from serving.engines.torch.tensor_store import TensorStore

        self.name, self.topology, self.tensors, self.child = name, config.topology(action), TensorStore(), child
        self.host = NodeHost(self.topology, (name,), self.tensors, Security(), LIMITS, "soak")
        self.driver = RealTimeDriver(WallClock(), pace="hardware", on_error=self._report_error)
        self.node: Any = self.topology.create_node(name)
        chip, self.engine = config.open_chip(self.topology, name, self.tensors)
        self.driver.add(name, self.node, chip)

    def _report_error(self, problem: Exception) -> None:
        """Work or an event was dropped, and this node goes on without it."""
        self.child.send("error", f"{self.name}: {type(problem).__name__}: {problem}")

    def held(self) -> dict[str, int]:
        """What is still held for sessions here: nothing, once all of them are over."""
        from tests.support.remaining_state import in_chip, in_driver, in_node, in_streams, open_streams

        found = in_node(self.node) | in_chip(self.engine, self.tensors) | in_driver(self.driver)
        if self.name in self.topology.device_fleets:
            del found["events"]  # a session's timer stays until it is due
            return found
        return found | in_streams(self.host) | open_streams(self.host)

    def table_sizes(self) -> dict[str, Any]:
        from tests.support.remaining_state import num_transport_sessions

        tasks = len(asyncio.all_tasks())
        return {"held": self.held(), "transport sessions": num_transport_sessions(self.host), "tasks": tasks}

    async def held_in_the_end(self) -> dict[str, int]:
        """What is left when nothing more goes, or after `FORGET_TIMEOUT_S`."""
        until_s = time.monotonic() + FORGET_TIMEOUT_S
        while any((held := self.held()).values()) and time.monotonic() < until_s:
            await asyncio.sleep(0.1)
        return {name: n for name, n in held.items() if n}


class SoakChild:
    """A process: hears its parent on the event loop, ends with it."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.stop = pipe, asyncio.Event()
        self.nodes: list[SoakNode] = []
        self.repeat_until_s = 0.0
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._receive)

    def send(self, word: str, value: Any = None) -> None:
        self.pipe.send((word, value))

    def _receive(self) -> None:
        try:
            word, value = self.pipe.recv()
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone
        if word == "tables":
            self._send_tables()
        elif word == "repeat":
            self.repeat_until_s = time.monotonic() + value
        else:
            self.stop.set()

    def _send_tables(self) -> None:
        try:
            self.send("tables", [node.table_sizes() for node in self.nodes])
        except Exception:
            traceback.print_exc()
            os._exit(1)  # the parent hears it at once, instead of waiting for an answer


def cloud(config: SoakConfig, address: str, pipe: Connection) -> None:
    _ignore_ctrl_c()
    asyncio.run(_cloud(config, address, pipe))


async def _cloud(config: SoakConfig, address: str, pipe: Connection) -> None:
    child = SoakChild(pipe)
    node = SoakNode(config, "cloud-0", "wait", child)
    child.nodes.append(node)
    child.send("listening", await node.host.listen(address))
    node.host.start(node.driver)
    running = asyncio.create_task(node.driver.run(child.stop.is_set))
    await child.stop.wait()
    node.driver.wake_up()
    await running
    await node.host.close(0.5)
    node.driver.close()
    child.send("done")


def devices(config: SoakConfig, addresses: Mapping[int, str], start_count: int, pipe: Connection) -> None:
    """Devices of one process; `addresses` says where each of them dials, `start_count` how often the process was
    started.
    """
    _ignore_ctrl_c()
    asyncio.run(_devices(config, addresses, start_count, pipe))


async def _devices(config: SoakConfig, addresses: Mapping[int, str], start_count: int, pipe: Connection) -> None:
    child = SoakChild(pipe)
    users = [SoakUser(config, number, way, start_count, child) for number, way in addresses.items()]
    await asyncio.gather(*(user.run() for user in users))
    child.send("done")


class SoakUser:
    """One device and the person at it, who asks, waits for the answer, thinks, and asks again; sometimes a second
    question of the same conversation, sometimes without waiting for the end.
    """

    def __init__(self, config: SoakConfig, number: int, address: str, start_count: int, child: SoakChild) -> None:
        self.config, self.number, self.address, self.start_count = config, number, address, start_count
        self.child = child
        self.node = SoakNode(config, f"device-{number}", "local" if number % 2 else "wait", child)
        child.nodes.append(self.node)
        self.node.driver.on_emit(self._on_tokens)
        self.answer: list[EmitTokens] = []
        self.answered = asyncio.Event()
        self._expected = ""
        self._random = random.Random(f"user {config.seed} {number} {start_count}")

    async def run(self) -> None:
        node = self.node
        await node.host.connect({"cloud-0": self.address})
        node.host.start(node.driver)
        node.driver.add_remote("cloud-0", self._duplicating(node.driver._transmitters["cloud-0"]))
        running = asyncio.create_task(node.driver.run(lambda: False))
        turn = 0
        while not self.child.stop.is_set():
            await self._ask_question(f"d{self.number}.{self.start_count}.{turn}")
            turn += 1
            await asyncio.sleep(self._random.uniform(0, 2 * THINK_S))
        self.child.send("left", (node.name, await node.held_in_the_end()))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await node.host.close(0.5)
        node.driver.close()

    async def _ask_question(self, session: str) -> None:
        r, number = self._random, self._random.randrange(PROMPTS)
        prompt, keep = self.config.prompt(number), r.random() < 0.1
        text = await self._ask(GenerationRequest(session, prompt, NEW_TOKENS, keep_cache=keep), session, number)
        if keep:
            await self._ask(
                GenerationRequest(session, (*prompt, *text, 7, 11), NEW_TOKENS, keep_cache=True), f"{session}/2", None
            )
            self._post(SessionCancelled(session))  # forgets the conversation

    async def _ask(self, call: GenerationRequest, label: str, number: int | None) -> tuple[int, ...]:
        self.answer, self._expected = [], call.session
        self.answered.clear()
        self.child.send("asked", (label, self.number))
        began = time.monotonic()
        self._post(RequestArrived(call))
        if self._random.random() < 0.05:
            await asyncio.sleep(self._random.uniform(0, 0.5))
            self._post(SessionCancelled(call.session))
        await self.answered.wait()
        text = tuple(token for d in self.answer for token in d.tokens)
        origins = Counter(origin for d in self.answer for origin in d.origins)
        self.child.send("ended", (label, number, self.answer[-1].ending, text, origins, time.monotonic() - began))
        return text

    def _post(self, event: RequestArrived | SessionCancelled) -> None:
        self.node.driver.post(self.node.driver.now(), self.node.name, event)

    def _on_tokens(self, deliver: EmitTokens, now: float) -> None:  # noqa: ARG002
        if deliver.session != self._expected or self.answered.is_set():
            self.child.send("twice", deliver.session)
            return
        self.answer.append(deliver)
        if deliver.ending:
            self.answered.set()

    def _duplicating(self, carry: Any) -> Any:
        def say(sender: str, to: str, message: Message) -> None:
            for _ in range(2 if time.monotonic() < self.child.repeat_until_s else 1):
                carry(sender, to, message)

        return say


def _ignore_ctrl_c() -> None:
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal: the parent ends it
