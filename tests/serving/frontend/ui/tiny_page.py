"""A pair of tiny checkpoints with a router made by hand, shown by a page in this process."""

import asyncio
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from serving.core.scores import ThresholdSide
from serving.deployment.queries import LoadedModels
from serving.engines.models import ModelConfig, ModelPair
from serving.frontend.service_options import ServiceOptions, UiOptions
from serving.frontend.ui.config import PolicyCard, UiConfig
from serving.frontend.ui.run_metrics import RunMeter
from serving.frontend.ui.server import UiServer
from serving.frontend.ui.ui_deployment import UiDeployment, open_shared_models
from serving.learned.router import TokenRouter
from serving.policy.policy import Policy
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.routed_offload import RoutedOffload
from serving.policy.slots.verify import Replace
from tests.support.fake_setup import setup
from tests.support.tiny_models import save_checkpoints

PROMPT = "where is the red key"
WIDTH = 16
"""Width of the tiny checkpoints' hidden states."""

Event = tuple[str, dict[str, Any]]


def router(side: ThresholdSide = "below", threshold: float = 0.4, seed: int = 3) -> TokenRouter:
    """Scores that spread over 0 to 1, whatever they mean."""
    weights = np.random.default_rng(seed).normal(scale=0.3, size=(1, WIDTH)).astype(np.float32)
    scores = tuple(sorted(np.random.default_rng(seed).random(100).round(3).tolist()))
    still = np.zeros(WIDTH, np.float32)
    layers = ((weights, np.zeros(1, np.float32)),)
    return TokenRouter(layers, still, still + 1, threshold=threshold, side=side, heldout_scores=scores)


def routed(name: str = "citer", found: TokenRouter | None = None) -> Policy:
    """A policy as conf/policy/citer.yaml describes it, but for its router."""
    base = setup("sled").policy
    return replace(
        base, name=name, draft=WindowDraft(1), offload=RoutedOffload(found or router()), verify=Replace(),
        kv_cache=setup("edge_centric").policy.kv_cache, link_loss=LinkLoss("local"),
    )  # fmt: skip


def pair(folder: Path) -> ModelPair:
    models, timing = save_checkpoints(folder), setup().pair
    device, cloud = (
        ModelConfig(path=models[side], timed_architecture=getattr(timing, side).timed_architecture)
        for side in ("device", "cloud")
    )
    return ModelPair(device, cloud)


def show(pair: ModelPair, policies: tuple[Policy, ...], devices: int = 2, **page: Any) -> UiConfig:
    """The first policy with the others as choices; at this machine's pace, over no link."""
    options = {"pace": "wall", "shaped": False, "port": 0, "api_key_env": "NO_KEY_FOR_THIS_TEST"} | page
    first = replace(setup("synera", pair=pair, devices=devices), policy=policies[0])
    return UiConfig(first, ServiceOptions(page=UiOptions(**options)), {policy.name: policy for policy in policies[1:]})


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found

    @property
    def events(self) -> list[Event]:
        blocks = [block.split("\n") for block in self.body.decode().split("\n\n") if block]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


class Played:
    """A page that is served while a test asks it."""

    def __init__(
        self, runner: asyncio.Runner, shown: UiConfig, models: Mapping[str, LoadedModels] | None = None
    ) -> None:
        self._runner = runner
        self.stage: UiDeployment
        self.server: UiServer
        self.models = models or open_shared_models(shown.setups, "cpu")
        runner.run(self._start(shown))

    async def _start(self, shown: UiConfig) -> None:
        self.stage = UiDeployment(shown, self.models)
        self.stage.tokenizer.eos_token_ids = ()  # random weights would end at once
        self.server = UiServer(self.stage)
        await self.server.start()
        self._task = asyncio.create_task(self.stage.driver.run(lambda: False))

    def run(self, work: Any) -> Any:
        """Bounded, so that what hangs fails."""
        return self._runner.run(asyncio.wait_for(work, 30))

    def close(self) -> None:
        async def end() -> None:
            await self.server.stop(0)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

        self.run(end())
        self.stage.close()

    # As a client.

    async def fetch(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        return await asyncio.to_thread(self._fetch, method, path, body, headers)

    def _fetch(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body or None, named)
            found = connection.getresponse()
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
        finally:
            connection.close()

    async def asked(self, **fields: Any) -> Answer:
        question = {"policy": "citer", "prompt": PROMPT, "max_tokens": 16} | fields
        return await self.fetch("POST", "/api/runs", json.dumps(question).encode(), content_type="application/json")

    def ask(self, **fields: Any) -> list[Event]:
        found: Answer = self.run(self.asked(**fields))
        assert found.status == 200, found.body
        return found.events


def named(events: list[Event], name: str) -> list[dict[str, Any]]:
    return [data for each, data in events if each == name]


def meter(
    hardware_paced: bool = True,
    remote_cloud: bool = False,
) -> RunMeter:
    bed = setup().hardware
    nodes = dict.fromkeys(("near-0", "cloud-0"), bed.head_fleet)
    return RunMeter(bed.device_fleets[0], bed.head_fleet, nodes, hardware_paced, remote_cloud)


def card(policy: Policy) -> PolicyCard:
    return PolicyCard(replace(setup(), policy=policy))
