"""Policies over a server: the local engine's text, and how a failure of the server ends."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serving.deployment.model_loading import load_models
from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.engines.models import ModelConfig, ModelPair
from serving.engines.remote.client import RemoteClient
from serving.engines.remote.opening import connect_remote
from serving.engines.tokenizer import Tokenizer
from serving.messages import GenerationRequest
from serving.metrics.recorder import SessionRecord
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.offload import AlwaysOffload
from serving.policy.slots.verify import Replace
from serving.progress import silent
from serving.runtimes import emulated
from serving.runtimes.local import Local
from tests.serving.engines.remote.conftest import Clock, server
from tests.serving.engines.remote.fake_server import FakeServer
from tests.support.conf_files import architecture
from tests.support.fake_setup import Questions, setup
from tests.support.tiny_tokenizers import byte_level

Brain = Callable[[tuple[int, ...]], int]
REPLACED = {"draft": WindowDraft(1), "verify": Replace()}


class Odd(AlwaysOffload):
    """Every other token is the cloud's to write, as a threshold might have it."""

    scope = "some"  # type: ignore[assignment]

    def tokens_to_offload(self, s: Any) -> int:
        return len(s.tokens) % 2


HYBRID = {**REPLACED, "offload": Odd()}


def queries(tokenizer: Tokenizer, n: int = 3, limit: int = 12, ends: bool = True) -> list[Query]:
    texts = ["where is the red key?", "the box", "one two three four"][:n]
    prompt = Questions().prompts()[0]
    stops = tokenizer.eos_token_ids if ends else ()
    calls = [
        GenerationRequest(f"r{i}", tuple(tokenizer.hf(text)["input_ids"]), limit, stops) for i, text in enumerate(texts)
    ]
    return [Query(call, prompt, i % 2, None, 0.0, None) for i, call in enumerate(calls)]


def made(name: str, paths: tuple[Path, Path], url: str | None = None, **override: Any) -> Setup:
    here = {"path": paths[1]} if url is None else {"server": server(url, retries=0)}
    pair = ModelPair(
        ModelConfig(path=paths[0], timed_architecture=architecture("tinyllama_1_1b")),
        ModelConfig(timed_architecture=architecture("llama2_13b"), **here),
    )
    return setup(name, pair=pair, override=override)


def served(found: Setup, tokenizer: Tokenizer, **how: Any) -> dict[str, SessionRecord]:
    models = load_models(found.pair.device, found.pair.cloud, requirements=found.policy.engine_requirements)
    return emulated.simulate(found, models, queries(tokenizer, **how))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("name", "override"), [("sled", {}), ("synera", {}), ("cloud_centric", {}), ("sled", HYBRID)],
    ids=["sled", "synera", "cloud_centric", "hybrid"],
)  # fmt: skip
def test_policies_over_a_server_write_the_local_engines_text(
    pair: tuple[Path, Path], tokenizer: Tokenizer, brain: Brain, kind: str, name: str, override: dict[str, Any]
) -> None:
    here = served(made(name, pair, **override), tokenizer)
    with FakeServer(byte_level(), brain, kind, ends=tokenizer.eos_token_ids) as fake:
        there = served(made(name, pair, fake.url, **override), tokenizer)
        assert fake.wrong == []
    assert {s: (r.tokens, r.origins, r.ending) for s, r in there.items()} == {
        s: (r.tokens, r.origins, r.ending) for s, r in here.items()
    }
    assert {record.ending for record in there.values()} == {"complete"}


def test_several_tokens_per_request_save_requests_and_change_no_text(
    pair: tuple[Path, Path], tokenizer: Tokenizer, brain: Brain
) -> None:
    texts, asked = [], []
    for span in (1, 6):
        with FakeServer(byte_level(), brain, ends=tokenizer.eos_token_ids) as fake:
            found = made("cloud_centric", pair, fake.url)
            assert found.pair.cloud.server
            wide = replace(found.pair.cloud.server, tokens_per_request=span)
            found = replace(found, pair=replace(found.pair, cloud=replace(found.pair.cloud, server=wide)))
            texts.append({s: r.tokens for s, r in served(found, tokenizer).items()})
            asked.append(len(fake.asked))
    assert texts[0] == texts[1]
    assert asked[1] * 3 < asked[0]


# A server that fails.


def dies_after(n: int, fake: FakeServer) -> Brain:
    """From the n-th token on there is no server any more."""
    told, brain = [0], fake.brain

    def next_token(prefix: tuple[int, ...]) -> int:
        told[0] += 1
        if told[0] > n:
            fake.faults.extend([503] * 500)
        return brain(prefix)

    return next_token


@pytest.mark.parametrize("runtime", ["emulated", "local"])
@pytest.mark.parametrize(
    ("action", "ending"), [("local", "complete"), ("wait", "failed"), ("fail", "failed")],
)  # fmt: skip
def test_a_failed_server_counts_as_a_lost_cloud(
    pair: tuple[Path, Path], tokenizer: Tokenizer, brain: Brain, runtime: str, action: Any, ending: str
) -> None:
    """No end token appears, what was written stays, and the device goes on as its policy says."""
    with FakeServer(byte_level(), brain) as fake:
        found = made("sled", pair, fake.url, **HYBRID, link_loss=LinkLoss(action))
        models = load_models(found.pair.device, found.pair.cloud, requirements=found.policy.engine_requirements)
        fake.brain = dies_after(3, fake)
        asked = queries(tokenizer, n=1, limit=10, ends=False)
        if runtime == "emulated":
            records = emulated.simulate(found, models, asked)
        else:
            records, _, _ = asyncio.run(Local(shaped=False).run(found, models, asked, silent))
    record = records["r0"]
    whole = served(made("sled", pair, **HYBRID), tokenizer, n=1, limit=10, ends=False)["r0"]
    assert record.ending == ending
    cloud = [i for i, origin in enumerate(record.origins) if origin in ("cloud", "corrected")]
    assert len(cloud) >= 3
    kept = cloud[-1] + 1
    assert record.tokens[:kept] == whole.tokens[:kept]
    assert tokenizer.eos_token_ids[0] not in record.tokens[kept:]
    assert (len(record.tokens) == 10) == (action == "local")
    assert ("offline" in record.origins) == (action == "local")
    assert "questions to the server failed" in models.notes()[0]


@pytest.mark.parametrize(
    ("fault", "cooldown_s", "asked"),
    [(400, 0.0, 3), (422, 0.0, 3), (401, 0.0, 3), (401, 600.0, 1), ("truncated", 0.0, 9)],
)
@pytest.mark.parametrize("runtime", ["emulated", "local"])
def test_a_refused_request_reaches_the_server_once(
    pair: tuple[Path, Path], tokenizer: Tokenizer, brain: Brain, runtime: str, fault: Any, cooldown_s: float, asked: int
) -> None:
    """A device asks 64 times before it gives up; the server hears each of three questions once."""
    with FakeServer(byte_level(), brain) as fake:
        found = made("cloud_centric", pair, fake.url)
        how = {
            "cooldown_s": cooldown_s,
            "concurrency": 1 if cooldown_s else 8,
        }  # else three are asked at once, and then it rests
        resting = replace(found.pair.cloud, server=server(fake.url, retries=0, **how))
        found = replace(found, pair=replace(found.pair, cloud=resting))
        models = load_models(found.pair.device, resting, requirements=found.policy.engine_requirements)
        fake.asked.clear()
        fake.faults.extend([fault] * 500)
        if runtime == "emulated":
            records = emulated.simulate(found, models, queries(tokenizer))
        else:
            records, _, _ = asyncio.run(Local(shaped=False).run(found, models, queries(tokenizer), silent))
    assert [record.ending for record in records.values()] == ["failed"] * 3
    assert len(fake.asked) == asked


@pytest.mark.parametrize(("runtime", "ending"), [(emulated.Emulated(), "complete"), (Local(shaped=False), "failed")])
def test_on_virtual_time_a_short_loss_of_the_server_is_waited_out(
    pair: tuple[Path, Path],
    tokenizer: Tokenizer,
    brain: Brain,
    monkeypatch: pytest.MonkeyPatch,
    runtime: Any,
    ending: str,
) -> None:
    """Sixty-four attempts take a moment of virtual time; on real time a device waits itself."""
    clock = Clock()
    monkeypatch.setattr(
        "serving.engines.remote.opening.RemoteClient", partial(RemoteClient, sleep=clock.sleep, clock=clock)
    )
    with FakeServer(byte_level(), brain) as fake:
        far = ModelConfig(
            timed_architecture=architecture("llama2_13b"), server=server(fake.url, retries=0, cooldown_s=5.0)
        )
        both = ModelPair(ModelConfig(path=pair[0], timed_architecture=architecture("tinyllama_1_1b")), far)
        found = setup("cloud_centric", pair=both, devices=1, limits={"num_prompts": 1, "max_new_tokens": 6})
        connect_remote(server(fake.url), tokenizer, len(tokenizer), verifies=False)
        fake.faults.extend([*[None] * (len(fake.asked) + 2), 503, 503])
        served = runtime.serve(found, "cpu", silent)
    (record,) = served.records.values()
    assert record.ending == ending
    assert clock.slept == ([5.0, 5.0] if ending == "complete" else [])
    failed = int(next(note for note in served.notes if "questions" in note).split()[0])
    assert failed == 2 if ending == "complete" else failed > 50


def test_a_transient_fault_changes_no_text(pair: tuple[Path, Path], tokenizer: Tokenizer, brain: Brain) -> None:
    here = served(made("sled", pair), tokenizer, n=1)
    with FakeServer(byte_level(), brain, ends=tokenizer.eos_token_ids) as fake:
        found = made("sled", pair, fake.url)
        models = load_models(found.pair.device, found.pair.cloud, requirements=found.policy.engine_requirements)
        for at in (1, 4):
            fake.faults.extend([*[None] * at, "truncated", 503, "reset"])
        there = emulated.simulate(found, models, queries(tokenizer, n=1))
    assert there["r0"].tokens == here["r0"].tokens
    assert there["r0"].ending == "complete"
