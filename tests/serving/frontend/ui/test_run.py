"""A run as events: texts, ends, and a cloud that is lost."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from serving.frontend.openai.detokenizer import decode
from serving.frontend.openai.errors import ApiError
from serving.frontend.ui.run import UiRun, encode_sse
from serving.frontend.ui.run_request import RunRequest
from serving.frontend.ui.token_trace import RunObserver
from serving.messages import EmitTokens, GenerationRequest, PeerLost, PeerRestored, RequestArrived, RoutingOptions
from serving.policy.slots.link_loss import LinkLoss
from tests.serving.frontend.openai.fake_gateway import FakeTokenizer
from tests.serving.frontend.ui.tiny_page import card, meter, named, routed


class ScriptedStreams:
    """Streams whose updates a test provides."""

    def __init__(self, observer: RunObserver, *updates: Any) -> None:
        self._observer, self._updates = observer, updates

    async def stream(self, device: str, call: GenerationRequest) -> AsyncGenerator[Any, None]:
        self._observer.event_handled(device, RequestArrived(call), 0.0, ())
        for update in self._updates:
            self._observer.event_handled(
                device, PeerLost("unknown"), 1.0, (update,) if isinstance(update, EmitTokens) else ()
            )
            yield update, 1.0


def events(*updates: Any, mode: Any = None, action: Any = "local", reach: Any = lambda: True) -> list[Any]:
    observer, tokenizer = RunObserver(["device-0"]), FakeTokenizer()
    asked = RunRequest(card(replace(routed(), link_loss=LinkLoss(action))), "x", 8, None, mode)
    run = UiRun(asked, (1,), "device-0", "s", ScriptedStreams(observer, *updates), observer, meter(), tokenizer, reach)  # type: ignore[arg-type]

    async def play() -> list[Any]:
        return [event async for some in run.events() for event in some]

    return asyncio.run(play())


def test_incomplete_characters_are_held_back_and_texts_join_to_the_decoding() -> None:
    hf = FakeTokenizer().hf
    whole, half = (hf(text, add_special_tokens=False)["input_ids"] for text in ("naïve 🙂 a", "🙂"))
    tokens = (*whole, half[0])
    found = events(*(EmitTokens("s", (t,), ("device",)) for t in tokens), EmitTokens("s", (), (), "complete"))
    texts = [token["text"] for token in named(found, "token")]
    assert "" in texts
    assert "".join(texts) + named(found, "done")[0]["remaining_text"] == decode(hf, tokens)
    assert all(token["token"] for token in named(found, "token"))


def test_an_end_token_is_a_token_without_text() -> None:
    end = FakeTokenizer().eos_token_ids[0]
    found = events(EmitTokens("s", (end,), ("cloud",)), EmitTokens("s", (), (), "complete"))
    (token,) = named(found, "token")
    assert (token["text"], token["end"], token["by_cloud"]) == ("", True, True)
    assert named(found, "counters")[-1]["cloud_tokens"] == 1
    assert named(found, "done") == [{"finish_reason": "stop", "remaining_text": ""}]


def test_text_held_back_until_an_end_token_is_that_tokens_text() -> None:
    """The page would otherwise show it as a part of the word `end`."""
    hf, end = FakeTokenizer().hf, FakeTokenizer().eos_token_ids[0]
    half = hf("🙂", add_special_tokens=False)["input_ids"][0]
    found = events(*(EmitTokens("s", (t,), ("device",)) for t in (half, end)), EmitTokens("s", (), (), "complete"))
    first, last = named(found, "token")
    assert (first["text"], last["text"], last["end"]) == ("", decode(hf, (half,)), True)
    assert last["text"]
    assert named(found, "done") == [{"finish_reason": "stop", "remaining_text": ""}]


END = EmitTokens("s", (), (), "complete")


def test_a_lost_cloud_is_reported_with_what_the_policy_does() -> None:
    said = named(
        events(PeerLost("cloud-0"), PeerLost("cloud-1"), PeerRestored("cloud-0"), PeerRestored("cloud-1"), END), "cloud"
    )
    assert [each["reachable"] for each in said] == [False, True]
    assert "goes on alone" in said[0]["message"]


@pytest.mark.parametrize(
    ("action", "says"), [("local", "goes on alone"), ("wait", "waits for it"), ("fail", "ends a run without it")]
)
def test_a_run_that_starts_without_its_cloud_reports_that_first(action: Any, says: str) -> None:
    begun, told, *rest = events(PeerRestored("cloud-0"), END, action=action, reach=[False, False].pop)
    assert (begun[0], begun[1]["cloud"], told[0], told[1]["reachable"]) == ("started", False, "cloud", False)
    assert says in told[1]["message"]
    assert [each["reachable"] for each in named(rest, "cloud")] == [True]


def test_a_cloud_lost_before_the_stream_starts_is_reported() -> None:
    said = named(events(END, reach=[True, True, False, True].pop), "cloud")
    assert [each["reachable"] for each in said] == [False, True]


def test_a_small_only_run_reports_nothing_about_the_cloud() -> None:
    found = events(PeerLost("cloud-0"), END, mode=RoutingOptions(small_only=True), reach=lambda: False)
    assert named(found, "cloud") == []


@pytest.mark.parametrize(
    ("action", "reach", "says"),
    [("fail", False, "cloud cannot be reached"), ("fail", True, "broke off"), ("local", False, "broke off")],
)
def test_a_failed_answer_names_the_cloud_or_the_device(action: Any, reach: bool, says: str) -> None:
    with pytest.raises(ApiError, match=says):
        events(EmitTokens("s", (), (), "failed"), action=action, reach=lambda: reach)


def test_lost_peers_are_tracked_per_device() -> None:
    observer = RunObserver(["a", "b"])
    for event in (PeerLost("x"), PeerLost("y"), PeerRestored("x")):
        observer.event_handled("a", event, 0.0, ())
    observer.event_handled("cloud-0", PeerLost("b"), 0.0, ())
    assert (observer.has_lost_peer("a"), observer.has_lost_peer("b")) == (True, False)
    observer.event_handled("a", PeerRestored("y"), 0.0, ())
    assert not observer.has_lost_peer("a")


def test_the_cloud_is_said_to_be_back_when_all_losses_have_ended() -> None:
    """One node lost, with the link to it and to another."""
    observer, told = RunObserver(["a"]), list[object]()
    observer.on_peer_change = lambda _session, update, _now: told.append(update)
    observer.start("s", "a")
    losses = PeerLost("x"), PeerLost("x", "link"), PeerLost("y", "link")
    ends = PeerRestored("x", "link"), PeerRestored("y", "link"), PeerRestored("x")
    for event in (*losses, *ends):
        observer.event_handled("a", event, 0.0, ())
    assert told == [*losses, PeerRestored("x")]


def test_server_sent_events_encode_any_text() -> None:
    assert (
        encode_sse([("token", {"text": "a\n\nevent: x\r"})])
        == b'event: token\ndata: {"text": "a\\n\\nevent: x\\r"}\n\n'
    )
