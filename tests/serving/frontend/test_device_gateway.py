"""A device behind its gateway, on the real-time driver, with the fake pair for models."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from native import loader
from serving.core.keyed_random import key
from serving.core.session import Session
from serving.deployment.topology import Topology
from serving.drivers.clock import WallClock
from serving.drivers.real_time import RealTimeDriver
from serving.drivers.simulator import ComputeResource
from serving.frontend.device_gateway import DeviceGateway
from serving.frontend.openai.gateway import Conversation, TokenDelta, UnsupportedRequestError
from serving.frontend.shutdown import FaultBarrier
from serving.messages import Command, Event, RequestArrived, SamplingParams
from serving.nodes.device import Device
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from tests.serving.frontend.openai.fake_gateway import FakeTokenizer
from tests.support.fake_pair import LAYERS, own_text
from tests.support.fake_setup import setup
from tests.support.grpc_hosts import ControlledPair, run, until

PROMPT = tuple(range(40, 52))
Tokens = tuple[int, ...]


@dataclass
class GatewayDevice:
    """`device-0` with its gateway, and its cloud, in one process."""

    gateway: DeviceGateway
    live: RealTimeDriver
    node: Device
    chips: dict[str, ControlledPair]
    begun: list[RequestArrived]

    async def ask(
        self, prompt: Tokens = PROMPT, limit: int = 12, sampling: SamplingParams | None = None, conversation: str = ""
    ) -> list[TokenDelta]:
        named = Conversation(conversation, 0) if conversation else None
        return [piece async for piece in self.gateway.generate(prompt, limit, sampling, named)]

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        if isinstance(event, RequestArrived):
            self.begun.append(event)

    def work_done(self, *_: Any) -> None: ...

    def message_sent(self, *_: Any) -> None: ...


@asynccontextmanager
async def gateway_device(policy: str = "sled", reach: bool = True, **override: Any) -> AsyncIterator[GatewayDevice]:
    tokenizer: Any = FakeTokenizer()
    tokenizer.eos_token_ids, tokenizer.token_text = (), "<{}>".format
    chosen = setup(policy, devices=1, override={"kv_cache": PrefixCaching()} | override)
    topology = Topology(chosen, LAYERS, tokenizer=tokenizer)
    gateway = DeviceGateway("device-0", topology.setup.policy, tokenizer, 100, lambda: reach)
    node = topology.create_node("device-0")
    assert isinstance(node, Device)
    made = GatewayDevice(gateway, None, node, {}, [])  # type: ignore[arg-type]
    made.live = live = RealTimeDriver(WallClock(), [gateway, made], on_error=lambda problem: None)
    for name in ("device-0", *topology.workers):
        made.chips[name] = ControlledPair()
        live.add(
            name,
            FaultBarrier(node) if name == "device-0" else topology.create_node(name),
            ComputeResource(made.chips[name]),
        )
    running = asyncio.create_task(live.run(lambda: False))
    try:
        async with asyncio.timeout(20):
            yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        live.close()


def run_scenario(
    scenario: Callable[[GatewayDevice], Coroutine[Any, Any, None]], policy: str = "sled", **how: Any
) -> None:
    async def play() -> None:
        async with gateway_device(policy, **how) as made:
            made.gateway.attach(made.live)
            await scenario(made)

    run(play)


def text(pieces: list[TokenDelta]) -> Tokens:
    return tuple(token for piece in pieces for token in piece.tokens)


def test_deltas_are_the_answer_and_the_last_one_ends() -> None:
    async def scenario(s: GatewayDevice) -> None:
        pieces = await s.ask()
        assert text(pieces) == own_text(PROMPT, 12)
        assert [piece.ending for piece in pieces] == [""] * (len(pieces) - 1) + ["complete"]
        assert all(len(piece.tokens) == len(piece.origins) for piece in pieces)

    run_scenario(scenario)


def test_requests_are_refused_before_a_driver_is_attached() -> None:
    async def play() -> None:
        async with gateway_device() as s:
            assert not s.gateway.ready
            with pytest.raises(UnsupportedRequestError, match="still being loaded"):
                await s.ask()

    run(play)


def test_cached_tokens_are_reported_once() -> None:
    async def scenario(s: GatewayDevice) -> None:
        first = await s.ask(conversation="c")
        second = await s.ask(PROMPT + text(first) + (7, 8), conversation="c")
        assert sum(piece.cached_tokens for piece in first) == 0
        assert [piece.cached_tokens for piece in second if piece.cached_tokens] == [len(PROMPT) + 12 - 1]
        assert sum(piece.cached_tokens for piece in await s.ask(conversation="other")) == 0

    run_scenario(scenario)


def test_a_released_conversation_starts_without_a_cache() -> None:
    async def scenario(s: GatewayDevice) -> None:
        said = text(await s.ask(conversation="c"))
        assert len(s.node.idle_sessions) == 1
        s.gateway.release("c")
        again = await s.ask(PROMPT + said + (7,), conversation="c")
        assert sum(piece.cached_tokens for piece in again) == 0

    run_scenario(scenario)


def test_without_a_conversation_no_cache_is_kept() -> None:
    async def scenario(s: GatewayDevice) -> None:
        await s.ask()
        assert not s.node.idle_sessions
        await until(lambda: not any(chip.caches for chip in s.chips.values()))

    run_scenario(scenario)


def test_closing_an_answer_early_cancels_it() -> None:
    async def scenario(s: GatewayDevice) -> None:
        async with aclosing(s.gateway.generate(PROMPT, 1000, None, None)) as pieces:
            await anext(pieces)
        assert text(await s.ask()) == own_text(PROMPT, 12)  # else it would wait for a thousand tokens
        assert len(s.begun) == 2

    run_scenario(scenario)


@pytest.mark.parametrize("policy", ["sled", "cloud_centric"])
def test_device_and_cloud_end_an_answer_at_a_stop_string(policy: str) -> None:
    written = own_text(PROMPT, 12)

    async def scenario(s: GatewayDevice) -> None:
        asked = s.gateway.generate(PROMPT, 12, None, Conversation("c", 0), stop_strings=(f"<{written[4]}>",))
        pieces = [piece async for piece in asked]
        first = written.index(written[4])
        assert (text(pieces), pieces[-1].ending) == (written[: first + 1], "complete")
        assert s.node.idle_sessions  # its caches are kept

    run_scenario(scenario, policy)


def test_one_seed_gives_one_random_stream_for_any_session_name() -> None:
    async def scenario(s: GatewayDevice) -> None:
        for seed, conversation in ((5, "a"), (5, ""), (6, "b")):
            await s.ask(limit=1, sampling=SamplingParams(1.0, 0, 1.0, seed), conversation=conversation)
        calls = [begin.request for begin in s.begun]
        assert len({call.session for call in calls}) == 3
        tokens = [key(call.sampling.seed, call.session) for call in calls if call.sampling]
        decisions = [Session(call, seed=99).random_stream for call in calls]
        assert tokens == decisions
        assert tokens[0] == tokens[1] != tokens[2]

    run_scenario(scenario, "edge_centric")


def test_greedy_requests_have_one_random_stream() -> None:
    async def scenario(s: GatewayDevice) -> None:
        for conversation in ("a", "b"):
            await s.ask(limit=1, conversation=conversation)
        assert len({Session(begin.request, seed=99).random_stream for begin in s.begun}) == 1

    run_scenario(scenario, "edge_centric")


@pytest.mark.parametrize("node", ["device-0", "cloud-0"])
def test_a_failing_chip_fails_at_most_one_request(node: str) -> None:
    async def scenario(s: GatewayDevice) -> None:
        s.chips[node].num_failures = 1
        first = await s.ask()
        assert first[-1].ending == ("failed" if node == "device-0" else "complete")
        second = await s.ask()
        assert (text(second), second[-1].ending) == (own_text(PROMPT, 12), "complete")

    run_scenario(scenario)


@pytest.mark.skipif(loader.in_use, reason="a compiled node's methods cannot be replaced")
def test_a_fault_in_the_device_fails_one_request(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(s: GatewayDevice) -> None:
        handle, heard = s.node.handle, 0

        def faulty(event: Event, now: float) -> Sequence[Command]:
            nonlocal heard
            heard += 1
            if heard == 3:
                raise KeyError("a fault")
            return handle(event, now)

        s.node.handle = faulty  # type: ignore[method-assign]
        first = await s.ask()
        assert first[-1].ending == "cancelled"
        assert text(await s.ask()) == own_text(PROMPT, 12)

    run_scenario(scenario)
    assert "broke off" in caplog.text
    assert "a fault" in caplog.text


@pytest.mark.skipif(loader.in_use, reason="a compiled node's methods cannot be replaced")
def test_a_device_that_cannot_cancel_ends_the_request_as_failed() -> None:
    async def scenario(s: GatewayDevice) -> None:
        handle = s.node.handle

        def broken(event: Event, now: float) -> Sequence[Command]:
            raise KeyError("a fault")

        s.node.handle = broken  # type: ignore[method-assign]
        assert [piece.ending for piece in await s.ask()] == ["failed"]
        s.node.handle = handle  # type: ignore[method-assign]
        assert text(await s.ask()) == own_text(PROMPT, 12)

    run_scenario(scenario)


@pytest.mark.parametrize(("policy", "travels"), [("sled", True), ("edge_centric", False)])
def test_bytes_are_counted_both_ways(policy: str, travels: bool) -> None:
    async def scenario(s: GatewayDevice) -> None:
        await s.ask()
        assert (s.gateway.uplink_nbytes > 0) == (s.gateway.downlink_nbytes > 0) == travels

    run_scenario(scenario, policy)


@pytest.mark.parametrize(
    ("policy", "action", "ready"), [("sled", "wait", False), ("sled", "local", True), ("edge_centric", "wait", True)]
)
def test_a_policy_that_needs_its_cloud_is_not_ready_without_it(policy: str, action: Any, ready: bool) -> None:
    async def scenario(s: GatewayDevice) -> None:
        assert (s.gateway.cloud_reachable, s.gateway.ready) == (False, ready)

    run_scenario(scenario, policy, reach=False, link_loss=LinkLoss(action))


def test_a_request_hears_nothing_of_a_cancelled_one_of_its_conversation() -> None:
    """As where a stop string ends an answer, and the next prompt continues its conversation at once."""

    async def scenario(s: GatewayDevice) -> None:
        async with aclosing(s.gateway.generate(PROMPT, 12, None, Conversation("c", 0))) as answer:
            await anext(answer)
        second = await s.ask(conversation="c")
        assert text(second) == own_text(PROMPT, 12)
        assert second[-1].ending == "complete"

    run_scenario(scenario)


def test_an_answer_that_has_ended_is_not_cancelled_where_its_reader_leaves_early() -> None:
    """Its caches stay for the next turn."""

    async def scenario(s: GatewayDevice) -> None:
        async with aclosing(s.gateway.generate(PROMPT, 12, None, Conversation("c", 0))) as answer:
            first = await anext(answer)
            await until(lambda: not s.node.active)
        assert not first.ending
        second = await s.ask(PROMPT + own_text(PROMPT, 12) + (7, 8), conversation="c")
        assert sum(piece.cached_tokens for piece in second) == len(PROMPT) + 12 - 1

    run_scenario(scenario)
