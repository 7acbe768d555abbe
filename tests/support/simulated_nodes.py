"""Devices and a cloud on the simulator with fake links, and a log that fresh nodes can replay."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from serving.core.stop_strings import TokenText, no_token_text
from serving.deployment.wiring import Driver
from serving.drivers.observer import Observer
from serving.drivers.simulator import ComputeResource, Processor, Simulator
from serving.hardware.latency import LinearLatency
from serving.messages import (
    INF,
    Command,
    DraftDecision,
    EmitTokens,
    Event,
    GenerationRequest,
    Node,
    RequestArrived,
    SamplingParams,
    SessionCancelled,
)
from serving.nodes.device import Device, LocalTarget
from serving.nodes.round_timing import ChipProfile
from serving.nodes.speculator import Speculator
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.placement import DEVICE_TIER
from tests.support.fake_pair import LAYERS, ROW_NBYTES, FailingPair, FakePair

PROFILE = ChipProfile(
    LinearLatency(2e-4, 0.0, 0.0, 0.015, LAYERS, "the fake pair"), LinearLatency(2e-4, 0.0, 0.0, 0.01, 1, "the same")
)
"""How long a `FakePair` takes."""


class DelayedLink:
    """Constant rate and delay, first in, first out."""

    def __init__(self, delay_s: float = 0.02, nbytes_per_s: float = 2e6) -> None:
        self.delay_s, self.rate, self.free = delay_s, nbytes_per_s, 0.0

    def arrival_s(self, nbytes: float, now: float) -> float:
        self.free = max(now, self.free) + nbytes / self.rate
        return self.free + self.delay_s


@dataclass
class Log:
    """The events of all nodes with their times and commands."""

    entries: list[tuple[str, Event, float, tuple[Command, ...]]] = field(default_factory=list)

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        self.entries.append((node, event, now, tuple(commands)))

    def work_done(self, *_: object) -> None: ...

    def message_sent(self, *_: object) -> None: ...

    def commands(self, kind: type) -> list[Any]:
        return [c for _, _, _, commands in self.entries for c in commands if isinstance(c, kind)]


@dataclass
class World:
    simulator: Any
    log: Log
    make: dict[str, Callable[[], Node]]
    nodes: dict[str, Node]
    chips: dict[str, FakePair]
    calls: list[GenerationRequest]

    def run(self) -> "World":
        self.simulator.run()
        return self

    def post_at_random(self, r: Random) -> list[str]:
        """Posts each call to a device of its own, and cancels some on the way; returns these."""
        for i, call in enumerate(self.calls):
            self.simulator.post(r.uniform(0, 2), f"device-{i}", RequestArrived(call))
        cancelled = {i: call.session for i, call in enumerate(self.calls) if r.random() < 0.15}
        for i, session in cancelled.items():
            self.simulator.post(r.uniform(0.5, 3), f"device-{i}", SessionCancelled(session))
        return list(cancelled.values())

    @property
    def workers(self) -> dict[str, Worker | Speculator]:
        """The cloud's nodes."""
        return {name: node for name, node in self.nodes.items() if isinstance(node, Worker | Speculator)}

    @property
    def devices(self) -> dict[str, Device]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, Device)}

    def text(self, session: str) -> tuple[int, ...]:
        return tuple(t for d in self.log.commands(EmitTokens) if d.session == session for t in d.tokens)

    def endings(self) -> dict[str, str]:
        return {d.session: d.ending for d in self.log.commands(EmitTokens) if d.ending}

    def chunks(self) -> list[DraftDecision]:
        return self.log.commands(DraftDecision)

    def replays(self) -> bool:
        """True if fresh nodes answer the logged events with the logged commands."""
        fresh = {name: make() for name, make in self.make.items()}
        return all(tuple(fresh[n].handle(event, now)) == commands for n, event, now, commands in self.log.entries)


def failing(w: World, node: str, *sessions: str) -> World:
    """The same world, where drafts of these sessions fail on a node's chip."""
    old = w.chips[node]
    pair = FailingPair(old.alpha, hidden_states=old.hidden_states, medusa=old.medusa, bad=frozenset(sessions))
    w.chips[node] = pair
    w.simulator.add(node, w.nodes[node], ComputeResource(pair))
    return w


def world(
    p: Policy,
    devices: int = 3,
    calls_each: int = 1,
    limit: int = 24,
    prompt: int = 12,
    alpha: float = 0.7,
    seed: int = 1,
    ends: tuple[int, ...] = (),
    timeout_s: float = INF,
    capacity_tokens: float = INF,
    sampling: SamplingParams | None = None,
    drive: Callable[[Sequence[Observer]], Driver] = Simulator,
    at_once: int = 1,
    keep_cache: bool = False,
    token_text: TokenText = no_token_text,
    delay_s: float = 0.02,
) -> World:
    log = Log()
    simulator = drive([log])
    hops = p.placement.hops(LAYERS, LAYERS)
    tiers = {hop.node: (hop.node,) for hop in hops if hop.node != DEVICE_TIER} or {"cloud": ("cloud",)}

    def cloud_node(tier: str) -> Node:
        if not p.is_colocated:
            return Worker(tier, p, tiers, capacity_tokens=capacity_tokens)
        target = LocalTarget(
            p.scheduler, capacity_tokens, drafts="apart" if p.drafts_apart else "first", profile=PROFILE
        )
        return Speculator(tier, p, hops[0].span, seed, target, token_text=token_text)

    make: dict[str, Callable[[], Node]] = {tier: lambda tier=tier: cloud_node(tier) for tier in tiers}  # type: ignore[misc]
    calls = []
    for i in range(devices):
        make[f"device-{i}"] = lambda i=i: Device(  # type: ignore[misc]
            f"device-{i}", p.on_device, hops, tiers, seed, timeout_s, at_once, ROW_NBYTES, token_text
        )
    nodes = {name: factory() for name, factory in make.items()}
    hidden_states: dict[str, Any] = {}
    chips = {name: FakePair(alpha, hidden_states=hidden_states, medusa=p.draft.medusa) for name in nodes}
    for name, node in nodes.items():
        own = Processor() if p.drafts_apart and isinstance(node, Speculator) else None
        simulator.add(name, node, ComputeResource(chips[name], draft_processor=own))
        if name not in tiers:
            up, down = DelayedLink(delay_s), DelayedLink(delay_s)
            for tier in tiers:
                simulator.connect(name, tier, up)
                simulator.connect(tier, name, down)
    for i in range(devices):
        for j in range(calls_each):
            text = tuple((seed * 7919 + i * 104729 + j * 613 + k * 31) % 997 for k in range(prompt))
            call = GenerationRequest(f"s{i}.{j}", text, limit, ends, sampling, keep_cache=keep_cache)
            calls.append(call)
            simulator.post(i * 0.003, f"device-{i}", RequestArrived(call))
    return World(simulator, log, make, nodes, chips, calls)
