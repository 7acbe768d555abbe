"""The page's runs over real nodes and engines: events, thresholds, refusals."""

import asyncio
import json
from dataclasses import replace
from math import nextafter
from typing import Any

import pytest

from serving.engines.models import ModelPair
from serving.frontend.ui.app import DevicePool, RunEndpoint
from serving.messages import PeerLost, PeerRestored
from serving.policy.slots.link_loss import LinkLoss
from tests.serving.frontend.ui.tiny_page import PROMPT, Played, named, routed, router, show
from tests.support.fake_setup import setup


def clouds(events: list[Any]) -> list[bool]:
    return [token["by_cloud"] for token in named(events, "token")]


def test_events_come_in_order_and_the_counters_add_up(page: Played) -> None:
    events = page.ask(max_tokens=16)
    assert [name for name, _ in events][:1] + [name for name, _ in events][-2:] == ["started", "counters", "done"]
    assert {name for name, _ in events[1:-1]} == {"token", "counters"}
    seen = 0
    for name, data in events:
        if name == "token":
            seen += 1
        elif name == "counters":
            assert data["cloud_tokens"] + data["device_tokens"] == data["tokens"] >= seen
    last = named(events, "counters")[-1]
    assert (last["tokens"], last["cloud_tokens"]) == (16, sum(clouds(events)))
    assert 0 < last["cloud_tokens"] < 16
    assert last["resources/uplink_nbytes"] > last["resources/downlink_nbytes"] == 20 * last["cloud_tokens"]
    assert named(events, "done") == [{"finish_reason": "length", "remaining_text": ""}]
    times = [token["at_ms"] for token in named(events, "token")]
    assert times == sorted(times)
    assert 1e3 * last["latency/ttft_s"] == pytest.approx(times[0])


def test_each_token_has_the_devices_alternatives(page: Played) -> None:
    for token in named(page.ask(), "token"):
        assert len(token["alternatives"]) == 3
        assert token["alternatives"][0] == token["device_token"]
        assert token["by_cloud"] or token["token"] == token["device_token"]
        assert token["origin"] == ("cloud" if token["by_cloud"] else "device")


def test_scores_are_compared_with_the_exact_threshold_of_the_request(page: Played) -> None:
    """To the last bit: a score equal to the threshold is not below it."""
    score = next(token["score"] for token in named(page.ask(), "token") if token["by_cloud"])
    exact, above = page.ask(threshold=score), page.ask(threshold=nextafter(score, 1))
    assert named(exact, "started")[0]["threshold"] == score
    assert score not in [token["score"] for token in named(exact, "token") if token["by_cloud"]]
    assert score in [token["score"] for token in named(above, "token") if token["by_cloud"]]


@pytest.mark.parametrize("threshold", [0.0, 0.35, 0.6, 1.0, None])
def test_exactly_the_tokens_below_the_threshold_are_the_clouds(page: Played, threshold: float | None) -> None:
    events = page.ask(threshold=threshold)
    at = named(events, "started")[0]["threshold"]
    assert at == (0.4 if threshold is None else threshold)
    assert clouds(events) == [token["score"] < at for token in named(events, "token")]


def test_small_only_sends_nothing_at_any_threshold(page: Played) -> None:
    events = page.ask(mode="small_only", threshold=1.0)
    last = named(events, "counters")[-1]
    assert not any(clouds(events))
    assert [last[key] for key in ("cloud_tokens", "resources/uplink_nbytes", "resources/downlink_nbytes")] == [0, 0, 0]
    assert named(events, "started")[0] | {"device": ""} == {
        "device": "", "policy": "citer", "mode": "small_only", "threshold": None, "prompt_tokens": 5, "max_tokens": 16,
        "cloud": True,
    }  # fmt: skip
    assert all(token["score"] is not None for token in named(events, "token"))


def test_edge_centric_and_cloud_centric_are_the_two_extremes(page: Played) -> None:
    alone, all_of_it = page.ask(policy="edge_centric"), page.ask(policy="cloud_centric")
    assert (any(clouds(alone)), all(clouds(all_of_it))) == (False, True)
    text = [[token["token"] for token in named(events, "token")] for events in (alone, page.ask(mode="small_only"))]
    assert text[0] == text[1]
    assert named(all_of_it, "token")[0]["alternatives"] == []


def test_one_seed_is_one_text(page: Played) -> None:
    def text(seed: int) -> list[str]:
        return [token["token"] for token in named(page.ask(temperature=1.5, seed=seed), "token")]

    assert text(3) == text(3) != text(4)


def test_a_router_of_side_above_routes_scores_above_the_threshold(tiny: ModelPair) -> None:
    with asyncio.Runner() as runner:
        played = Played(runner, show(tiny, (routed("co_llm", router("above", 0.9)),)))
        events = played.ask(policy="co_llm")
        assert clouds(events) == [token["score"] > 0.9 for token in named(events, "token")]
        assert any(clouds(events))
        about = json.loads(played.run(played.fetch("GET", "/api/about")).body)
        assert about["policies"][0]["router"]["side"] == "above"
        played.close()


# Beside each other, and in line.


def test_two_runs_have_a_device_each_and_a_third_waits(page: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    observer, begin, most = page.stage.observer, page.stage.observer.start, []

    def noted(session: str, device: str) -> None:
        begin(session, device)
        most.append(sorted(observer._device_of.values()))

    async def at_once() -> list[Any]:
        return await asyncio.gather(*(page.asked(max_tokens=100) for _ in range(3)))

    monkeypatch.setattr(observer, "start", noted)
    devices = sorted(named(found.events, "started")[0]["device"] for found in page.run(at_once()))
    assert set(devices) == {"citer.device-0", "citer.device-1"}
    assert len(most) == 3
    assert all(at_once == ["citer.device-0", "citer.device-1"] for at_once in most[1:])
    assert observer._device_of == observer._drafted_tokens == {}
    assert not observer._recorder.records
    assert not [state for state in observer._recorder._workers.values() if state.waiting_since_s or state.arrived]


def test_a_waiting_run_gets_the_device_of_its_queue() -> None:
    async def scene() -> None:
        pool, free, acquired = DevicePool(2, 1, 1.0), [asyncio.Event(), asyncio.Event()], []

        async def hold(run: int) -> None:
            async with pool.acquire() as number:
                acquired.append((run, number))
                await free[number].wait()

        tasks = [asyncio.create_task(hold(run)) for run in range(3)]
        while not any(queue.waiting for queue in pool._queues):
            await asyncio.sleep(0)
        assert acquired == [(0, 0), (1, 1)]
        taken = next(number for number, queue in enumerate(pool._queues) if queue.waiting)
        free[taken].set()
        await asyncio.gather(tasks[taken], tasks[2])
        assert acquired[2:] == [(2, taken)]
        free[1 - taken].set()
        await tasks[1 - taken]

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_run_beyond_full_queues_gets_429(tiny: ModelPair) -> None:
    with asyncio.Runner() as runner:
        played = Played(runner, show(tiny, (routed(),), devices=1, max_waiting=1))

        async def at_once() -> list[Any]:
            return await asyncio.gather(*(played.asked(max_tokens=100) for _ in range(3)))

        found = sorted(runner.run(at_once()), key=lambda answer: answer.status)
        assert [answer.status for answer in found] == [200, 200, 429]
        assert found[2].headers["retry-after"] == "1"
        played.close()


def test_a_client_that_disconnects_ends_its_run(page: Played) -> None:
    async def leave() -> None:
        body = json.dumps({"policy": "citer", "prompt": PROMPT, "max_tokens": 450}).encode()
        head = "POST /api/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        live, endings = page.stage.driver, []
        live.on_emit(lambda deliver, _: endings.append(deliver.ending) if deliver.ending else None)
        reader, writer = await asyncio.open_connection("127.0.0.1", page.server.port)
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readuntil(b"event: token")
        writer.close()
        devices = [node.device for node in live._nodes.values() if hasattr(node, "device")]  # type: ignore[attr-defined]
        while page.stage.observer._device_of or any(device.active for device in devices):
            await asyncio.sleep(0.005)
        assert endings == ["cancelled"]  # and not because all was written

    page.run(leave())
    assert len(named(page.ask(max_tokens=4), "token")) == 4  # the device is free again


def test_a_stopping_server_ends_runs_with_an_error_event(tiny: ModelPair) -> None:
    with asyncio.Runner() as runner:
        played = Played(runner, show(tiny, (routed(),)))

        async def stopped() -> Any:
            asking = asyncio.create_task(played.asked(max_tokens=450))
            while not played.stage.observer._device_of:
                await asyncio.sleep(0.005)
            await played.server.stop(0)
            return await asking

        events = runner.run(stopped()).events
        assert events[-1] == ("error", {"message": "this device is shutting down"})
        assert named(events, "started")
        played.close()


def test_a_failing_model_ends_one_run_with_an_error_event(tiny: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner() as runner:
        played = Played(runner, show(tiny, (routed(),)))
        engine: Any = played.models["citer"].device
        execute, count = engine.execute, 0

        def failing(work: Any) -> Any:
            nonlocal count
            count += 1
            if count == 5:
                raise RuntimeError("the chip is on fire")
            return execute(work)

        monkeypatch.setattr(engine, "execute", failing)
        events = played.ask()
        assert len(named(events, "token")) == 4
        assert events[-1][0] == "error"
        assert "broke off on this device" in events[-1][1]["message"]
        assert named(played.ask(), "done")
        played.close()


# What is refused.


@pytest.mark.parametrize(
    ("fields", "param", "match"),
    [
        ({"policy": "synera"}, "policy", "not on this page; there are citer, edge_centric, cloud_centric"),
        ({"policy": None}, "policy", "give a text"),
        ({"prompt": ""}, "prompt", "give a text"),
        ({"prompt": "\ud800"}, "prompt", "half a character"),
        ({"prompt": "key " * 600}, "prompt", "context is 512 tokens"),
        ({"mode": "large_only"}, "mode", "citer knows joint and small_only"),
        ({"mode": "small_only", "policy": "cloud_centric"}, "mode", "cloud_centric knows joint"),
        ({"threshold": 1.01}, "threshold", "a number from 0 to 1"),
        ({"threshold": "0.4"}, "threshold", "a number from 0 to 1"),
        ({"threshold": 0.4, "policy": "edge_centric", "mode": "small_only"}, "threshold", "has no router"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to 512"),
        ({"max_tokens": 509}, "prompt", "context is 512 tokens"),
        ({"temperature": -1}, "temperature", "from 0 to 2"),
        ({"seed": 0.5}, "seed", "whole number"),
        ({"tau": 0.4}, "tau", "knows no field tau"),
        ({"\ud800": 1}, "one", "knows no field one"),
    ],
)
def test_invalid_requests_are_refused_by_field(page: Played, fields: dict[str, Any], param: str, match: str) -> None:
    found = page.run(page.asked(**fields))
    assert (found.status, found.error["param"]) == (400, param)
    assert match in found.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/api/runs", b"{}", {}, 415),
        ("POST", "/api/runs", b"[]", {"content_type": "application/json"}, 400),
        ("POST", "/api/runs", b"{" * 100_000, {"content_type": "application/json"}, 400),
        ("POST", "/api/runs", b" " * 300_000, {"content_type": "application/json"}, 413),
        ("GET", "/api/runs", b"", {}, 405),
        ("GET", "/page.py", b"", {}, 404),
        ("GET", "/../made.py", b"", {}, 404),
        ("GET", "/static/page.css", b"", {}, 404),
        ("GET", "/", b"", {"host": "evil.example:8080"}, 421),
        ("GET", "/", b"", {"host": ""}, 421),
    ],
)
def test_other_methods_paths_and_hosts_are_refused(
    page: Played, method: str, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    found = page.run(page.fetch(method, path, body, **headers))
    assert found.status == status
    assert found.error["message"]
    assert "default-src 'self'" in found.headers["content-security-policy"]


def test_the_api_needs_the_key_and_static_files_do_not(tiny: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_THIS_TEST", "the-key")
    with asyncio.Runner() as runner:
        played = Played(runner, show(tiny, (routed(),), api_key_env="KEY_OF_THIS_TEST"))
        assert [played.run(played.fetch("GET", path)).status for path in ("/", "/page.js", "/healthz")] == [200] * 3
        assert played.run(played.fetch("GET", "/api/about")).status == 401
        assert played.run(played.asked()).status == 401
        bearer = {"authorization": "Bearer the-key"}
        assert played.run(played.fetch("GET", "/api/about", **bearer)).status == 200
        played.close()


def test_a_run_that_needs_an_unreachable_remote_cloud_is_refused(page: Played) -> None:
    from serving.frontend.openai.errors import ApiError
    from serving.frontend.ui.run_request import RunRequest

    runs = RunEndpoint(page.stage, page.server._running)
    cards = page.stage.config.policy_cards

    class Gone:
        reachable: frozenset[str] = frozenset()

    page.stage.host = Gone()  # type: ignore[assignment]
    try:
        runs._check(RunRequest(cards["citer"], PROMPT, 4, None, None), (1, 2))  # link_loss=local goes on alone
        with pytest.raises(ApiError, match="cloud cannot be reached"):
            runs._check(RunRequest(cards["cloud_centric"], PROMPT, 4, None, None), (1, 2))
    finally:
        page.stage.host = None


# While the cloud is gone.


async def gone(played: Played, event: type[PeerLost | PeerRestored], policy: str) -> None:
    """Devices and their cloud are told what an outage of the link tells them, and have heard it."""
    live, topology = played.stage.driver, played.stage.topologies[policy]
    for node, peer in ((a, b) for device in topology.devices for a, b in ((device, "cloud"), ("cloud", device))):
        node, peer = (f"{policy}.cloud-0" if name == "cloud" else name for name in (node, peer))
        live.post(live.now(), node, event(peer))
    while any(played.stage.observer.has_lost_peer(device) != (event is PeerLost) for device in topology.devices):
        await asyncio.sleep(0)


def test_a_run_that_starts_without_its_cloud_reports_that_it_goes_on_offline(page: Played) -> None:
    page.run(gone(page, PeerLost, "citer"))
    try:
        events = page.ask(threshold=1.0)
    finally:
        page.run(gone(page, PeerRestored, "citer"))
    assert [name for name, _ in events[:2]] == ["started", "cloud"]
    assert (events[0][1]["cloud"], events[1][1]["reachable"]) == (False, False)
    assert "marked offline" in events[1][1]["message"]
    assert {token["origin"] for token in named(events, "token")} == {"offline"}
    assert named(page.ask(), "cloud") == []


def test_a_run_that_starts_without_its_cloud_waits_and_reports_both_changes(page: Played) -> None:
    async def scene() -> Any:
        await gone(page, PeerLost, "cloud_centric")
        asking = asyncio.create_task(page.asked(policy="cloud_centric", max_tokens=4))
        while not page.stage.observer._device_of:
            await asyncio.sleep(0.005)
        await gone(page, PeerRestored, "cloud_centric")
        return await asking

    events = page.run(scene()).events
    said = named(events, "cloud")
    assert [each["reachable"] for each in said] == [False, True]
    assert "waits for it" in said[0]["message"]
    assert len(named(events, "token")) == 4


def test_a_run_that_fails_without_its_cloud_names_the_cloud_as_the_reason(tiny: ModelPair) -> None:
    with asyncio.Runner() as runner:
        policy = replace(setup("cloud_centric").policy, link_loss=LinkLoss("fail"))
        played = Played(runner, show(tiny, (policy,)))
        played.run(gone(played, PeerLost, "cloud_centric"))
        events = played.ask(policy="cloud_centric")
        assert [name for name, _ in events] == ["started", "cloud", "error"]
        assert "ends a run without it" in events[1][1]["message"]
        assert "the cloud cannot be reached" in events[2][1]["message"]
        played.close()


# What it says of itself.


def test_about_describes_policies_and_metrics(page: Played) -> None:
    about = json.loads(page.run(page.fetch("GET", "/api/about")).body)
    assert [policy["name"] for policy in about["policies"]] == ["citer", "edge_centric", "cloud_centric"]
    found = about["policies"][0]["router"]
    assert (found["threshold"], found["artifact_threshold"], found["side"]) == (0.4, 0.4, "below")
    assert len(found["scores"]) == 100
    assert found["scores"] == sorted(found["scores"])
    assert "has no router" in about["policies"][1]["no_slider_reason"]
    counters = named(page.ask(max_tokens=2), "counters")[-1]
    assert {each["key"] for each in about["metrics"]} == counters.keys() - {
        "cloud_tokens",
        "device_tokens",
        "offline_tokens",
    }
    assert all(each["description"] for each in about["metrics"])
    assert about["examples"] == ["Where?"]
    assert about["limits"] == {"max_tokens": 512, "default_max_tokens": 24, "context": 512}


def test_energy_is_known_at_hardware_pace_only(tiny: ModelPair, page: Played) -> None:
    assert named(page.ask(), "counters")[-1]["resources/device_energy_j"] is None
    with asyncio.Runner() as runner:
        shown = show(tiny, (routed(), setup("cloud_centric").policy), pace="hardware", shaped=True)
        played = Played(runner, shown)
        last = named(played.ask(max_tokens=6), "counters")[-1]
        fleet = shown.setup.hardware.device_fleets[0]
        computed_s = last["latency/ttft_s"] + 5 * last["latency/tbt_s"]
        assert 0 < last["resources/device_energy_j"] < 2 * (fleet.joules(computed_s) or 0)
        all_of_it = named(played.ask(policy="cloud_centric", max_tokens=3), "counters")[-1]
        assert all_of_it["resources/cloud_energy_j"] == pytest.approx(
            shown.setup.hardware.head_fleet.joules(all_of_it["resources/cloud_busy_s"]), rel=1e-3
        )
        played.close()
