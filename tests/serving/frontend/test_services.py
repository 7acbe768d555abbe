"""The two services: processes that the official OpenAI client talks to, and their parts."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import torch

from serving import cloud, device
from serving.cloud import CloudConfig
from serving.deployment import model_loading
from serving.deployment.queries import LoadedModels
from serving.deployment.setup import context_tokens, session_tokens
from serving.deployment.topology import Topology
from serving.device import DeviceConfig
from serving.drivers.clock import WallClock
from serving.drivers.real_time import RealTimeDriver
from serving.engines.models import ModelConfig, ModelPair
from serving.engines.torch.tensor_store import TensorStore
from serving.frontend.health import CloudStats, HealthServer
from serving.frontend.openai.options import EndpointOptions, RoutingLimits
from serving.frontend.service_options import HealthOptions, ServiceOptions, UiOptions, deployment_digest
from serving.frontend.shutdown import run_until_stopped, stop_signal
from serving.frontend.ui import server as page
from serving.frontend.ui.config import UiConfig
from serving.messages import ForwardWork, MessageReceived, Release, Request, SendMessage, SequenceSlice, Span, TensorRef
from serving.nodes.device import MAX_IDLE_SESSIONS
from serving.nodes.worker import Worker
from serving.policy.slots.draft import TreeDraft
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.verify import TreeVerify
from serving.runtimes.host import NodeHost
from serving.transport import tensors
from serving.transport.frame import Hello, encode_message
from serving.transport.security import Security
from tests.serving.transport.transport_peers import ending, raw
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import setup
from tests.support.grpc_hosts import LIMITS, generation_request, host_group, run
from tests.support.simulated_tiers import tiered_setup, tiers
from tests.support.tiny_models import save_checkpoints

TOKEN, KEY = "the-token-of-this-test", "the-key-of-this-test"


class Process:
    """A service with its output; `said` waits for a line."""

    def __init__(self, name: str, *words: str) -> None:
        environment = os.environ | {"TANDEM_TOKEN": TOKEN, "TANDEM_API_KEY": KEY}
        self.output = ""
        self._run = subprocess.Popen(
            [sys.executable, "-m", f"serving.{name}", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip

    def said(self, pattern: str) -> str:
        assert self._run.stdout
        for line in self._run.stdout:
            self.output += line
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"{pattern} was never said:\n{self.output}")

    def told(self, number: signal.Signals) -> None:
        self._run.send_signal(number)

    def ended(self) -> int:
        self.output += self._run.communicate(timeout=30)[0]
        return self._run.returncode

    def kill(self) -> None:
        self._run.kill()
        self._run.communicate()


@pytest.fixture
def pair(tmp_path: Path, outputs: Path) -> Iterator[tuple[Process, Process]]:
    """A cloud and a device, started at once, with models of random weights."""
    models = save_checkpoints(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = (
        "+policy=sled", "model=toy", f"model.device.path={models['device']}", f"model.cloud.path={models['cloud']}",
        f"service.cloud=127.0.0.1:{port}", "service.endpoint.port=0", "service.health.port=0", f"outputs={outputs}",
        "workload.template=plain", "network.delay_ms=5", "service.shaped=true", "service.pace=hardware",
        "trainer.threads=1", "service.limits.backoff_max_s=0.3",
    )  # fmt: skip
    both = Process("cloud", *words), Process("device", *words)
    yield both
    for process in both:
        process.kill()


def counted(page: str, name: str) -> float:
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(f"{name} "))


def read(url: str | urllib.request.Request) -> str:
    with urllib.request.urlopen(url, timeout=10) as page:
        return str(page.read().decode())


def test_the_official_client_streams_through_two_processes(pair: tuple[Process, Process]) -> None:
    cloud, device = pair
    client = openai.OpenAI(base_url=device.said(r"answers on (\S+)"), api_key=KEY, max_retries=0, timeout=30)
    health = cloud.said(r"on (http\S+)/readyz")
    device.said(r"its cloud at (\S+) is there")
    assert json.loads(read(f"{client.base_url}".removesuffix("v1/") + "readyz"))["cloud"]
    with client:
        _two_turns(client)
        _one_seed_one_text(client)
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="another").models.list()
        assert json.loads(read(f"{health}/readyz")) == {"ready": True, "devices": 1}
        page = read(f"{health}/metrics")
        assert counted(page, "tandem_cloud_batches_total") > 0
        assert counted(page, "tandem_cloud_errors_total") == 0
        _stopped_in_the_middle(client, device)
    cloud.told(signal.SIGINT)
    assert (device.ended(), cloud.ended()) == (0, 0), cloud.output + device.output
    assert TOKEN not in cloud.output + device.output
    assert KEY not in cloud.output + device.output


def _two_turns(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "where is the red key"}]
    first, usage = _streamed(client, messages)
    assert first
    assert usage.prompt_tokens_details.cached_tokens == 0
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "is it in a box"}]
    assert _streamed(client, messages)[1].prompt_tokens_details.cached_tokens > 0


def _streamed(client: openai.OpenAI, messages: list[Any]) -> tuple[str, Any]:
    stream = client.chat.completions.create(
        model="sled", messages=messages, temperature=0, max_tokens=12, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks[-1].usage


def _one_seed_one_text(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        answer = client.completions.create(model="sled", prompt="the red key", max_tokens=16, seed=seed)
        assert {"accepted", "bonus", "corrected"} & set(answer.tandem["origins"])  # type: ignore[attr-defined]
        return answer.choices[0].text

    assert text(3) == text(3) != text(4)


def _stopped_in_the_middle(client: openai.OpenAI, device: Process) -> None:
    """The stream under way comes to its end."""
    stream = client.completions.create(model="sled", prompt="where is it", max_tokens=40, seed=1, stream=True)
    chunks = [next(stream)]
    device.told(signal.SIGTERM)
    chunks += stream
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")


# What is refused before anything is trained.


def test_a_cloud_for_a_policy_without_cloud_is_refused() -> None:
    with pytest.raises(ValueError, match="edge_centric places nothing in a cloud"):
        CloudConfig(setup("edge_centric"), ServiceOptions())


def test_a_device_that_the_testbed_does_not_have_is_refused() -> None:
    DeviceConfig(setup(devices=3), ServiceOptions(device=2))
    with pytest.raises(ValueError, match=r"service.device is 3, but the testbed has 3"):
        DeviceConfig(setup(devices=3), ServiceOptions(device=3))


def test_a_token_without_tls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TOKEN", TOKEN)
    remote = ServiceOptions(cloud="10.0.0.1:7070")
    for side in (CloudConfig, DeviceConfig):
        with pytest.raises(ValueError, match="no TLS") as told:
            side(setup(), remote)
        assert TOKEN not in str(told.value)
    CloudConfig(setup(), ServiceOptions())
    DeviceConfig(setup("edge_centric"), remote)  # connects to no cloud


NODES = {"nano-0": "127.0.0.1:7001", "nano-1": "127.0.0.1:7002", "nx-0": "127.0.0.1:7003"}


def test_each_tier_node_is_a_cloud_process_that_names_its_node() -> None:
    made = tiered_setup(tiers(2, 1))
    topology = Topology(made, LAYERS)
    for node in NODES:
        service = ServiceOptions(nodes=NODES, node=node)
        CloudConfig(made, service)
        assert service.local_nodes(topology) == (node,)
    DeviceConfig(made, ServiceOptions(nodes=NODES))
    assert ServiceOptions(nodes=NODES).addresses(topology) == NODES
    for node in (None, "nano", "agx-0", "device-0"):
        with pytest.raises(ValueError, match=rf"service.node is {node!r}; say which .* is: nano-0, nano-1, nx-0"):
            CloudConfig(made, ServiceOptions(nodes=NODES, node=node))


WRONG_NODES = {
    "service.nodes says nothing of nano-1, nx-0; .* as in .service.nodes.nano-1=127": {"nano-0": "127.0.0.1:7001"},
    "service.nodes names agx-0; the nodes of this testbed's tiers are nano-0": NODES | {"agx-0": "127.0.0.1:7004"},
    "nano-0 and nx-0 are both at 127.0.0.1:7001; each node": NODES | {"nx-0": "127.0.0.1:7001"},
}


@pytest.mark.parametrize("match", WRONG_NODES)
def test_tier_nodes_need_exactly_one_address_each(match: str) -> None:
    """Refused by cloud and device, before any training."""
    service = ServiceOptions(nodes=WRONG_NODES[match], node="nano-0")
    for side in (CloudConfig, DeviceConfig):
        with pytest.raises(ValueError, match=match):
            side(tiered_setup(tiers(2, 1)), service)


def test_nodes_of_a_testbed_without_tiers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"service.nodes names nano-0; .* are none, because it has no tiers"):
        CloudConfig(setup(), ServiceOptions(nodes={"nano-0": "127.0.0.1:7001"}))


def test_a_malformed_node_address_is_refused() -> None:
    with pytest.raises(ValueError, match=r"service.nodes.nano-0 is 'nowhere'; give host:port"):
        ServiceOptions(nodes={"nano-0": "nowhere"})


def test_a_token_without_tls_between_tiers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TOKEN", TOKEN)
    remote = ServiceOptions(nodes=NODES | {"nx-0": "10.0.0.1:7070"}, node="nano-0")
    for side in (CloudConfig, DeviceConfig):
        with pytest.raises(ValueError, match="no TLS") as told:
            side(tiered_setup(tiers(2, 1)), remote)
        assert TOKEN not in str(told.value)


def test_an_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", " ")
    with pytest.raises(ValueError, match="set but empty"):
        DeviceConfig(setup(), ServiceOptions())


@pytest.mark.parametrize("blank", ["", "  "])
def test_an_empty_token_is_refused(monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    monkeypatch.setenv("TANDEM_TOKEN", blank)
    for side in (CloudConfig, DeviceConfig):
        with pytest.raises(ValueError, match="TANDEM_TOKEN is set but empty"):
            side(setup(), ServiceOptions(cloud="0.0.0.0:7070"))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"cloud": "nowhere"}, "give host:port"),
        ({"cloud": "h:99999"}, "give host:port"),
        ({"device": -1}, "counted from 0"),
        ({"timeout_s": 0.0}, "more than 0"),
        ({"context_tokens": 1}, "at least 2"),
        ({"grace_s": -1.0}, "0 or more"),
        ({"endpoint": EndpointOptions(cached_conversations=65)}, "service.limits.sessions_per_node"),
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ServiceOptions(**wrong)


def test_more_open_sessions_than_a_cloud_keeps_are_refused() -> None:
    service = ServiceOptions(cloud="127.0.0.1:7070")
    kept = service.endpoint.cached_conversations + service.endpoint.routing.cached_sessions
    most = service.limits.sessions_per_node
    for running in (most - kept, most - kept + 1):
        base = setup()
        many = replace(base, workload=replace(base.workload, max_concurrency=running))
        if running + kept <= most:
            DeviceConfig(many, service)
        else:
            with pytest.raises(
                ValueError, match=rf"workload.max_concurrency is {running}, .*keep fewer, or allow more"
            ):
                DeviceConfig(many, service)


def test_a_health_port_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"service.health.port is 70000"):
        HealthOptions(port=70000)


# How long a conversation may be.


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    models = save_checkpoints(tmp_path_factory.mktemp("models"))
    timing = setup().pair
    return ModelPair(
        ModelConfig(path=models["device"], timed_architecture=timing.device.timed_architecture),
        ModelConfig(path=models["cloud"], timed_architecture=timing.cloud.timed_architecture),
    )


def test_context_tokens_are_what_models_and_cache_allow(real: ModelPair) -> None:
    assert context_tokens(setup("sled", pair=real)) == 512
    assert context_tokens(setup("sled", pair=real), 100) == 100
    assert context_tokens(setup("edge_centric", pair=real)) == 512
    assert (
        context_tokens(setup("cloud_centric", pair=real, override={"kv_cache": PrefixCaching(capacity_tokens=90)}))
        == 80
    )  # whole blocks


TREES: dict[str, Any] = {"draft": TreeDraft(nodes=32, depth=4, branching=16), "verify": TreeVerify()}


def test_the_cache_leaves_room_for_a_tree_behind_a_whole_context(real: ModelPair) -> None:
    made = setup("sled", pair=real, override=TREES | {"kv_cache": PrefixCaching(capacity_tokens=160)})
    assert (context_tokens(made), session_tokens(made, context_tokens(made))) == (128, 160)


def test_a_cloud_takes_trees_at_the_end_of_the_context() -> None:
    async def play() -> None:
        made = setup("sled", override=TREES)
        limits = replace(LIMITS, max_tokens=session_tokens(made, 12 + 24))
        async with host_group(base=made, limits=limits) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            device.submit(generation_request("s", 24))
            delivered = await device.wait_for_end("s")
            assert (sum(len(each.tokens) for each in delivered), delivered[-1].ending) == (24, "complete")

    run(play)


def test_more_context_tokens_than_a_model_takes_are_refused(real: ModelPair) -> None:
    with pytest.raises(ValueError, match="is 513, and the device's model takes 512"):
        context_tokens(setup("sled", pair=real), 513)


# Access.


def test_the_digest_differs_where_cloud_and_device_must_agree() -> None:
    names = {
        deployment_digest(Topology(each, LAYERS)) for each in (setup("sled"), setup("synera"), setup("sled", devices=3))
    } | {deployment_digest(Topology(setup("sled"), 4))}
    assert len(names) == 4
    assert deployment_digest(Topology(setup("sled"), LAYERS)) == deployment_digest(
        Topology(replace(setup("sled"), seed=9), LAYERS)
    )
    assert deployment_digest(Topology(setup("sled"), LAYERS)).startswith("sled/2-devices-")


def test_a_refusal_by_the_cloud_is_a_value_error() -> None:
    async def play() -> None:
        topology, other = Topology(setup("sled"), LAYERS), Topology(setup("synera"), LAYERS)
        cloud = NodeHost(topology, ("cloud-0",), None, Security(), LIMITS, deployment_digest(topology))
        address = await cloud.listen("127.0.0.1:0")
        device = NodeHost(other, ("device-0",), None, Security(), LIMITS, deployment_digest(other))
        with pytest.raises(ValueError, match=r"cloud-0 at .* refuses device-0: .*sled/2-devices-.*synera/2-devices-"):
            await device.connect({"cloud-0": address})
        await cloud.close()

    run(play)


@pytest.mark.usefixtures("signals_of_a_command")
def test_a_device_without_its_port_never_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one of the same name would take the stream of the first."""
    connected = []

    async def connect(_: NodeHost, addresses: dict[str, str]) -> None:
        connected.append(addresses)

    monkeypatch.setattr(NodeHost, "connect", connect)
    monkeypatch.setattr(device, "_build_driver", lambda *_: SimpleNamespace(close=lambda: None))
    models: Any = SimpleNamespace(tokenizer=[], hidden_size=8)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = ServiceOptions(endpoint=EndpointOptions(port=taken.getsockname()[1], api_key_env=""))
        with pytest.raises(ValueError, match=r"cannot listen on 127\.0\.0\.1 port"):
            run(lambda: device._serve(Topology(setup("sled"), LAYERS), service, models, TensorStore(), 64))
    assert not connected


@pytest.mark.parametrize("width", [4, 12])
def test_hidden_states_of_another_width_than_the_models_are_refused(width: int) -> None:
    async def play() -> None:
        topology = Topology(setup("u_shape"), LAYERS)
        cloud = NodeHost(topology, ("cloud-0",), TensorStore(), Security(), LIMITS, "digest", 997, hidden_size=8)
        states = SequenceSlice("s", 0, 2, (), hidden_states=TensorRef("of/s", 32))
        asked = Request(0, states, topology.hops, 1, ("device-0", "cloud-0"), "device-0")
        known = Hello(("device-0",), "digest", sends_tensors=True, boot_id="b").encoded
        sent = encode_message("device-0", "cloud-0", asked, [tensors.pack(torch.ones(2, width))])
        async with raw(await cloud.listen("127.0.0.1:0"), known, sent) as call:
            assert await ending(call) == ("INVALID_ARGUMENT", f"slice.hidden_states: width {width}, must be 8")
        await cloud.close()

    run(play)


# A cloud's pages.


def stats() -> CloudStats:
    return CloudStats(
        Worker("cloud-0", setup("sled", override={"kv_cache": PrefixCaching()}).policy, capacity_tokens=500)
    )


def rows(session: str, n: int) -> SequenceSlice:
    return SequenceSlice(session, 0, n, tuple(range(n)), 0, "greedy")


def test_cloud_stats_count_what_the_worker_does() -> None:
    found, span = stats(), Span(0, LAYERS, True, True)
    topology = Topology(setup("sled"), LAYERS)
    for session in ("a", "b"):
        request = Request(0, rows(session, 6), topology.hops, 0, ("cloud-0",), "device-0")
        commands = found.entry_node.handle(MessageReceived(request), 1.0)
        found.event_handled("cloud-0", MessageReceived(request), 1.0, commands)
    found.event_handled("cloud-0", MessageReceived(Release("z")), 1.0, ())
    found.work_done("cloud-0", ForwardWork(span, (rows("a", 6), rows("b", 6)), ("none", "none"), ()), (), 1.0, 1.5)
    assert (found.requests, found.batches, found.tokens, found.busy_s) == (2, 1, 12, 0.5)
    assert (found.queue_len, found.sessions, found.cached_tokens, found.capacity_tokens) == (2, 2, 0, 500)
    assert found.uplink_nbytes > 2 * 6 * 4


def test_health_pages_show_the_cloud_stats() -> None:
    async def play() -> None:
        found = stats()
        found.errors = 3
        health = HealthServer(found, lambda: 2)
        port = await health.serve(HealthOptions(), 0)
        base = f"http://127.0.0.1:{port}"
        ready, alive, page = [await asyncio.to_thread(read, f"{base}/{p}") for p in ("readyz", "healthz", "metrics")]
        assert (json.loads(ready), json.loads(alive)) == ({"ready": True, "devices": 2}, {"alive": True})
        assert counted(page, "tandem_cloud_errors_total") == 3
        assert counted(page, "tandem_cloud_devices") == 2
        assert counted(page, "tandem_cloud_cache_capacity_tokens") == 500
        with pytest.raises(ValueError, match=rf"service.health: cannot listen on 127.0.0.1 port {port}"):
            await HealthServer(found, lambda: 0).serve(HealthOptions(), port)
        await health.stop()

    run(play)


def test_a_cloud_that_stops_is_alive_and_not_ready() -> None:
    async def play() -> None:
        stop = asyncio.Event()
        health = HealthServer(stats(), lambda: 2, stop.is_set)
        base = f"http://127.0.0.1:{await health.serve(HealthOptions(), 0)}"
        stop.set()
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            await asyncio.to_thread(read, f"{base}/readyz")
        assert json.loads(refused.value.read()) == {"ready": False, "devices": 2}
        assert json.loads(await asyncio.to_thread(read, f"{base}/healthz")) == {"alive": True}
        await health.stop()

    run(play)


def test_health_pages_refuse_requests_for_another_host() -> None:
    async def play() -> None:
        health = HealthServer(stats(), lambda: 0)
        port = await health.serve(HealthOptions(), 0)
        foreign = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"host": f"evil.example:{port}"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            await asyncio.to_thread(read, foreign)
        await health.stop()

    run(play)


# Coming to an end.


SERVICES: dict[str, tuple[Any, Any]] = {
    "cloud": (cloud.run, CloudConfig),
    "device": (device.run, DeviceConfig),
    "page": (page.run, UiConfig),
}


@pytest.fixture
def signals_of_a_command() -> Iterator[None]:
    """A worker of tests ignores SIGINT, and a command before may have left a handler of its own."""
    own = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in own.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_of_a_command")
@pytest.mark.parametrize("name", SERVICES)
def test_signals_end_a_service_that_loads_its_models(
    name: str, real: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> None:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("SIGINT was held back")

    for function in ("load_side", "load_models"):
        monkeypatch.setattr(model_loading, function, load)
    serve, config = SERVICES[name]
    with pytest.raises(KeyboardInterrupt):
        serve(config(setup("sled", pair=real), ServiceOptions()))


class HostMadeError(Exception):
    """A service has come to its host, whose arguments are in `args`."""


@pytest.fixture
def host_arguments(monkeypatch: pytest.MonkeyPatch, signals_of_a_command: None) -> Callable[..., tuple[Any, ...]]:
    """What a service makes its host of, without models: (topology, names, tensors, security, limits, ...)."""
    models = SimpleNamespace(
        tokenizer=range(997), cloud_layers=LAYERS, hidden_size=8, close=lambda: None, stop=lambda: None
    )

    def stop_here(*args: Any) -> None:
        raise HostMadeError(*args)

    def arguments(name: str, made: Any, options: ServiceOptions) -> tuple[Any, ...]:
        monkeypatch.setattr(model_loading, "load_side", lambda *_: models)
        monkeypatch.setattr({"cloud": cloud, "device": device, "page": page}[name], "NodeHost", stop_here)
        serve, config = SERVICES[name]
        with pytest.raises(HostMadeError) as told:
            serve(config(made, options))
        return told.value.args

    return arguments


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_takes_messages_of_a_whole_context_and_a_tree(
    name: str, real: ModelPair, host_arguments: Callable[..., tuple[Any, ...]]
) -> None:
    made = setup("sled", pair=real, override=TREES)
    limits = host_arguments(name, made, ServiceOptions(page=UiOptions(remote_cloud=True)))[4]
    assert limits.max_tokens == session_tokens(made, context_tokens(made)) == 512 + 32


@pytest.mark.parametrize(("cached", "kept"), [(8, MAX_IDLE_SESSIONS), (52, 60)])
def test_a_device_keeps_as_many_sessions_as_its_endpoint_names(
    real: ModelPair, host_arguments: Callable[..., tuple[Any, ...]], cached: int, kept: int
) -> None:
    options = ServiceOptions(
        endpoint=EndpointOptions(cached_conversations=cached, routing=RoutingLimits(cached_sessions=8))
    )
    topology = host_arguments("device", setup("sled", pair=real), options)[0]
    assert topology.create_node("device-0").max_idle_sessions == kept


@pytest.mark.usefixtures("signals_of_a_command")
def test_a_page_without_its_port_disturbs_no_cloud(real: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []

    async def connect(_: NodeHost, addresses: Any) -> None:
        connected.append(addresses)

    monkeypatch.setattr(NodeHost, "connect", connect)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = UiOptions(remote_cloud=True, port=taken.getsockname()[1])
        with pytest.raises(ValueError, match=r"service.page: cannot listen on 127.0.0.1 port"):
            page.run(UiConfig(setup("sled", pair=real), ServiceOptions(page=options)))
    assert connected == []


@pytest.mark.usefixtures("signals_of_a_command")
def test_a_page_that_its_cloud_refuses_gives_its_port_back(real: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise ValueError("the cloud refuses this page")

    monkeypatch.setattr(NodeHost, "connect", refuse)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = UiConfig(setup("sled", pair=real), ServiceOptions(page=UiOptions(remote_cloud=True, port=port)))
    with pytest.raises(ValueError, match="the cloud refuses this page"):
        page.run(config)
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.usefixtures("signals_of_a_command")
def test_a_page_that_ends_closes_its_models(real: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's connections, here."""
    closed: list[str] = []
    opened = page.open_shared_models

    def open_models(*arguments: Any) -> dict[str, LoadedModels]:
        models = opened(*arguments)
        return {name: replace(each, close=lambda: closed.append("models")) for name, each in models.items()}

    monkeypatch.setattr(page, "open_shared_models", open_models)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = UiOptions(port=taken.getsockname()[1])
        with pytest.raises(ValueError, match=r"service.page: cannot listen"):
            page.run(UiConfig(setup("sled", pair=real), ServiceOptions(page=options)))
    assert closed == ["models"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_only_the_first_signal_is_caught(number: signal.Signals) -> None:
    async def play() -> None:
        before = signal.getsignal(number)
        try:
            stop = stop_signal()
            os.kill(os.getpid(), number)
            await asyncio.wait_for(stop.wait(), 10)
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            assert signal.getsignal(number) == default
        finally:
            signal.signal(number, before)

    run(play)


def test_the_driver_runs_during_shutdown() -> None:
    async def play() -> None:
        heard: list[str] = []

        class Ear:
            def handle(self, event: Any, now: float) -> tuple[()]:
                heard.append(event)
                return ()

        live, stop = RealTimeDriver(WallClock()), asyncio.Event()
        live.add("ear", Ear(), None)  # type: ignore[arg-type]
        stop.set()

        async def wind_down() -> None:
            live.post(live.now(), "ear", "late")  # type: ignore[arg-type]
            while not heard:
                await asyncio.sleep(0.001)

        await asyncio.wait_for(run_until_stopped(live, stop, wind_down), 10)
        live.close()
        assert heard == ["late"]

    run(play)


class Slow:
    """A link of 50 ms."""

    def arrival_s(self, nbytes: float, now_s: float) -> float:
        return now_s + 0.05


class Answering:
    """A node that answers, and is idle at once."""

    is_idle = True

    def handle(self, event: Any, now: float) -> tuple[SendMessage, ...]:
        return (SendMessage("device-0", Release("s"), 16),) if event == "ask" else ()


@pytest.mark.parametrize("remote", [True, False])
def test_a_stopping_cloud_waits_for_the_messages_on_its_emulated_links(remote: bool) -> None:
    async def play() -> None:
        found: list[Any] = []

        class Ear:
            def handle(self, event: Any, now: float) -> tuple[()]:
                found.append(event.message)
                return ()

        live, node, stop = RealTimeDriver(WallClock()), Answering(), asyncio.Event()
        live.add("cloud-0", node, None)  # type: ignore[arg-type]
        live.connect("cloud-0", "device-0", Slow())
        if remote:
            live.add_remote("device-0", lambda _sender, _to, message: found.append(message))
        else:
            live.add("device-0", Ear(), None)  # type: ignore[arg-type]
        live._handle("cloud-0", "ask")  # type: ignore[arg-type]
        stop.set()
        nodes: Any = [node]
        await asyncio.wait_for(run_until_stopped(live, stop, lambda: cloud._drained(live, nodes, 10)), 20)
        live.close()
        assert found == [Release("s")]

    run(play)


def test_the_error_that_ended_the_driver_is_raised_also_where_winding_down_fails() -> None:
    async def play() -> None:
        class Broken:
            def handle(self, event: Any, now: float) -> tuple[()]:
                raise ZeroDivisionError("the node broke")

        live, stop = RealTimeDriver(WallClock()), asyncio.Event()
        live.add("node", Broken(), None)  # type: ignore[arg-type]
        live.post(live.now(), "node", "event")  # type: ignore[arg-type]

        async def wind_down() -> None:
            raise TimeoutError("a client does not read")

        with pytest.raises(ZeroDivisionError, match="the node broke"):
            await asyncio.wait_for(run_until_stopped(live, stop, wind_down), 10)
        live.close()

    run(play)
